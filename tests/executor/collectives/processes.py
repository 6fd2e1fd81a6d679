"""Runs a function in forked processes and gives back what each returned."""

import os
import pickle
import traceback


def run_forked(count, work):
    """Returns work(member) of `count` processes, an exception's text where it raised."""
    pipes, pids = [], []
    for member in range(count):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(reader)
                try:
                    result = work(member)
                except Exception as error:
                    result = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
                with os.fdopen(writer, "wb") as file:
                    pickle.dump(result, file)
                code = 0
            finally:
                os._exit(code)
        os.close(writer)
        pipes.append(reader)
        pids.append(pid)
    results = []
    for reader, pid in zip(pipes, pids, strict=True):
        with os.fdopen(reader, "rb") as file:
            data = file.read()
        os.waitpid(pid, 0)
        results.append(pickle.loads(data) if data else None)
    return results
