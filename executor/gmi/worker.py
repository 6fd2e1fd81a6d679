"""The process of one GMI: builds the user's class, meets the others, runs it.

Started as `python -m executor.gmi.worker CONTROL_FDS SHARED_FD` by `executor.launch.local`, with
cores and thread counts already set.
"""

import contextlib
import importlib
import importlib.util
import mmap
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from doppler.core.errors import ConfigError, WorkerDiedError, WorkerHungError
from executor.channels import check_memory_order
from executor.collectives.kernels import AllReduce
from executor.collectives.peers import WaitOptions
from executor.collectives.select import open_all_reduce
from executor.control import ControlClosedError, ControlSocket
from executor.experience.flow import Batcher, Migrator, Packer
from executor.experience.ring import BatchReader, BatchWriter
from executor.experience.weights import WeightPublisher, WeightReader
from executor.gmi.base import GMI, End, GMIContext
from executor.gmi.communication import Channel, Collective, GMISpec, Link
from executor.gmi.messages import Begin, Failed, Finished, Ready, Run
from executor.gmi.spans import RUN, SpanLog
from executor.gmi.status import StatusBoard
from executor.launch.local import check_bound
from executor.shared_memory import map_all
from executor.workers.accelerator import open_accelerator
from executor.workers.cpu import serve_process

FILE_SUFFIX = ".py"
MAIN_NAME = "__gmi_main__"


def load_class(spec: GMISpec) -> type[GMI]:
    """Returns the user's class.

    A file is imported under another name than `__main__`, so what stands behind a script's
    `if __name__ == "__main__"` does not run again.

    Raises:
        ConfigError: If there is no such module or class, or the class is no GMI.
    """
    try:
        module = _load_module(spec.source)
        found = getattr(module, spec.class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the class of {spec.title} is {spec.class_name!r} of {spec.source!r}, and {error}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, GMI)):
        raise ConfigError(f"{spec.class_name!r} of {spec.source!r} is no subclass of GMI")
    return found


def _load_module(source: str) -> ModuleType:
    if not source.endswith(FILE_SUFFIX):
        return importlib.import_module(source)
    spec = importlib.util.spec_from_file_location(MAIN_NAME, Path(source))
    if spec is None or spec.loader is None:
        raise ImportError(f"{source!r} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MAIN_NAME] = module
    spec.loader.exec_module(module)
    return module


def open_ends(begin: Begin, memory: mmap.mmap, board: StatusBoard) -> dict[str, tuple[int, End]]:
    """Returns a GMI's ends of the links that it takes part in, with the links' positions."""
    found: dict[str, tuple[int, End]] = {}
    for index, link in enumerate(begin.communication.links):
        end = _open_end(begin, link, memory, board, begin.communication.places[link.name])
        if end is not None:
            found[link.name] = (index, end)
    return found


def _open_end(
    begin: Begin, link: Link, memory: mmap.mmap, board: StatusBoard, base: int
) -> End | None:
    own = begin.gmi_id
    if isinstance(link, Collective):
        if own not in link.members:
            return None
        return open_all_reduce(
            link.kernel,
            link.layout,
            memory,
            base,
            link.members.index(own),
            [begin.gmis[member].title for member in link.members],
            (f"/proc/self/fd/{begin.store_fd}", link.name),
            WaitOptions(deadline_ns=begin.deadline_ns),
            [begin.gmis[member].device.parent for member in link.members],
        )
    if isinstance(link, Channel):
        if own in link.producers:
            writers = [
                BatchWriter(link.ring, memory, base + link.offset(own, consumer))
                for consumer in link.consumers
            ]
            return Packer(own, Migrator(writers), link.when_full, begin.deadline_ns, board.step)
        if own in link.consumers:
            return Batcher(
                [
                    BatchReader(link.ring, memory, base + link.offset(producer, own))
                    for producer in link.producers
                ],
                board.step,
            )
        return None
    if own == link.publisher:
        return WeightPublisher(memory, base, link.num_bytes)
    return WeightReader(memory, base, link.num_bytes) if own in link.readers else None


def main() -> None:
    """Runs one GMI, as often as its parent says, until it says stop or is gone."""
    serve_process(sys.argv[1], sys.argv[2], _serve)


def _serve(control: ControlSocket, shared_fd: int) -> None:
    begin: Begin = control.receive()
    try:
        own = begin.gmis[begin.gmi_id]
        check_memory_order()
        check_bound(own.device)
        accelerator = None if begin.share is None else open_accelerator(begin.share)[0]
        memory = map_all(shared_fd)
        os.close(shared_fd)
        if begin.store_fd >= 0:
            os.set_inheritable(begin.store_fd, False)
        board = StatusBoard(memory, begin.gmi_id)
        ends = open_ends(begin, memory, board)
        with contextlib.nullcontext() if accelerator is None else accelerator.active():
            spans = SpanLog()
            gmi = load_class(own)(
                GMIContext(
                    gmis=begin.gmis,
                    gmi_id=begin.gmi_id,
                    ends=ends,
                    board=board,
                    control=control,
                    seed=begin.seed,
                    attempt=begin.attempt,
                    deadline_ns=begin.deadline_ns,
                    spans=spans,
                )
            )
            gmi.setup()
            for _, end in ends.values():
                if isinstance(end, AllReduce):
                    end.join()
            control.send(Ready())
            while True:  # the end comes from the parent: what it has written is read by others
                run: Run = control.receive()
                with spans.span(RUN):
                    result = gmi.run(run.num_episodes, run.num_steps)
                control.send(Finished(result, spans.array(), spans.num_dropped))
    except ControlClosedError:
        raise
    except Exception as error:
        control.send(
            Failed(
                summary=f"{type(error).__name__}: {error}",
                text=traceback.format_exc(),
                blames_other=isinstance(error, WorkerDiedError | WorkerHungError),
            )
        )
    control.receive()  # stays until the parent ends it: what it has written is read by others


if __name__ == "__main__":
    main()
