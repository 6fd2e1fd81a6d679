"""What lies in the arena before the first iteration: inputs and initial tokens."""

import numpy as np

from doppler.core.errors import ExecutionError
from doppler.core.graph import DataflowGraph
from executor.arena import Arena
from executor.job import Job


def token_versions(graph: DataflowGraph) -> dict[tuple[int, int], int]:
    """Returns how many versions of each (op, output) outlive an iteration: its largest distance."""
    versions: dict[tuple[int, int], int] = {}
    for edge in graph.edges:
        if edge.distance:
            key = (edge.src, edge.output)
            versions[key] = max(versions.get(key, 0), edge.distance)
    return versions


def write_initial(job: Job, graph: DataflowGraph, arena: Arena) -> None:
    """Writes every input and every initial token into the arena.

    Raises:
        ExecutionError: If the job gives the wrong number of bytes; names op and output.
    """
    for op, spec in enumerate(graph.ops):
        if spec.is_input:
            for output in range(len(spec.outputs)):
                _write(job, graph, arena, op, output, 0)
    for (op, output), count in token_versions(graph).items():
        for version in range(-count, 0):
            _write(job, graph, arena, op, output, version)


def _write(
    job: Job, graph: DataflowGraph, arena: Arena, op: int, output: int, version: int
) -> None:
    target = arena.writable(op, output, version)
    value = job.initial(graph.ops[op].name, output, version)
    if value is None:
        target[:] = 0
        return
    data = np.ascontiguousarray(value).view(np.uint8).reshape(-1)
    if data.size != target.size:
        raise ExecutionError(
            f"output {output} of op {graph.ops[op].name!r} has {target.size} bytes, and the job "
            f"gives {data.size} for version {version}"
        )
    target[:] = data
