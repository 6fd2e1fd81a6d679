"""Binds its own process to cores and memory, then becomes the worker.

Run by path with `python -I -S`, so that nothing but the standard library is loaded: thread pools
size themselves when a numerical library is imported, so affinity must stand before that.

Usage: bind.py CORES MEMORY PARENT_PID COMMAND...; CORES is a comma list or "all", MEMORY the bytes
of private memory that it may take or "all", PARENT_PID the process to die with, or 0.

Source: getrlimit(2), RLIMIT_DATA (private writable mappings, since Linux 4.7).
"""

import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Sets affinity, memory limit and signals of this process and replaces it by the command."""
    cores, memory, parent, command = *arguments[:2], int(arguments[2]), arguments[3:]
    if cores != "all":
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    if memory != "all":
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))
    # Ctrl-C reaches the whole terminal group; only the parent answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if parent:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
