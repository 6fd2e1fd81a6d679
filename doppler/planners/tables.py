# ruff: noqa: N815 - shape suffixes (device_U) are upper case
"""A problem as flat arrays for the compiled list schedulers.

Arrays: `V` ops, `U` units, `D` devices, `T` tensors. CSR: row i of `x` is x[x_ptr[i]:x_ptr[i + 1]].
Only edges of distance 0 order a list schedule, so graphs of a period are placed by one iteration.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.core.costs import Costs
from doppler.core.graph import DataflowGraph, Edge
from doppler.planners.mask import NO_UNIT, Bools, Ints, Mask

Floats = NDArray[np.float64]


class ListTables(NamedTuple):
    """Arrays of one problem.

    Attributes:
        times_VD: Time of each op on each device, the runtime's cost per op included.
        in_ptr, in_src, in_tensor: In-edges whose tensor comes from an op with a device.
        out_ptr, out_dst: The same edges from their other end.
        held_ptr, held_tensor: Inputs resident everywhere that each op reads.
        tensor_ptr: First tensor of each op; tensor = tensor_ptr[op] + output.
        bytes_T: Size of each tensor.
        readers_T: In-edges above that read each tensor, one more if an edge of another distance
            does: such a tensor is never done with.
        latency_DD, per_byte_DD: Transfer time = latency + bytes * per_byte; 0 on the diagonal,
            infinite latency without a link.
        streams_D: Ops at a time.
        unit_V: Unit per op, -1 where an op has no device.
        allowed_UD, state_U, limit_D, linked_DD: As in `Mask`.
        near_ptr, near_unit, near_sends: Units joined by an edge of any distance; True where the
            row's unit is the sender.
        stamp: Empty. Its element type carries a digest of the kernels' source, because numba's
            cache on disk looks at one file only and would go on with old code of the others.
    """

    times_VD: Floats
    in_ptr: Ints
    in_src: Ints
    in_tensor: Ints
    out_ptr: Ints
    out_dst: Ints
    held_ptr: Ints
    held_tensor: Ints
    tensor_ptr: Ints
    bytes_T: Ints
    readers_T: Ints
    latency_DD: Floats
    per_byte_DD: Floats
    streams_D: Ints
    unit_V: Ints
    allowed_UD: Bools
    state_U: Ints
    limit_D: Ints
    linked_DD: Bools
    near_ptr: Ints
    near_unit: Ints
    near_sends: Bools
    stamp: NDArray[np.void]


def make_tables(mask: Mask, costs: Costs) -> ListTables:
    """Returns the arrays of the mask's problem with these costs."""
    graph, cluster = mask.problem.graph, mask.problem.cluster
    num_ops = graph.num_ops
    times_VD = np.asarray(costs.op_ns, dtype=np.float64).reshape(num_ops, -1)
    times_VD = times_VD + np.asarray(costs.dispatch_ns, dtype=np.float64)
    tensor_ptr = np.zeros(num_ops + 1, dtype=np.int64)
    np.cumsum([len(op.outputs) for op in graph.ops], out=tensor_ptr[1:])
    ordering = [edge for edge in graph.edges if edge.distance == 0]
    units = mask.unit_V.tolist()
    joined = [edge for edge in ordering if units[edge.src] != NO_UNIT]
    resident = [edge for edge in ordering if units[edge.src] == NO_UNIT]
    in_ptr, in_src, in_tensor = _by_destination(joined, tensor_ptr, num_ops)
    held_ptr, _, held_tensor = _by_destination(resident, tensor_ptr, num_ops)
    out_ptr, out_dst = _csr([edge.src for edge in joined], [edge.dst for edge in joined], num_ops)
    latency_DD, per_byte_DD = _transfer_times(mask)
    sends = mask.edge_units_E2
    both = np.concatenate([sends, sends[:, ::-1]])
    order = np.argsort(both[:, 0], kind="stable")
    near_ptr = np.searchsorted(both[order, 0], np.arange(mask.num_units + 1)).astype(np.int64)
    return ListTables(
        times_VD=times_VD,
        in_ptr=in_ptr,
        in_src=in_src,
        in_tensor=in_tensor,
        out_ptr=out_ptr,
        out_dst=out_dst,
        held_ptr=held_ptr,
        held_tensor=held_tensor,
        tensor_ptr=tensor_ptr,
        bytes_T=np.asarray([size for op in graph.ops for size in op.outputs], dtype=np.int64),
        readers_T=_readers(graph, joined, tensor_ptr),
        latency_DD=latency_DD,
        per_byte_DD=per_byte_DD,
        streams_D=np.asarray([device.num_streams for device in cluster.devices], dtype=np.int64),
        unit_V=mask.unit_V,
        allowed_UD=mask.allowed_UD,
        state_U=mask.state_U,
        limit_D=mask.limit_D,
        linked_DD=mask.linked_DD,
        near_ptr=near_ptr,
        near_unit=np.ascontiguousarray(both[order, 1]),
        near_sends=np.ascontiguousarray(order < len(sends)),
        stamp=np.zeros(0, dtype=[(_source_digest(), np.int8)]),
    )


@cache
def _source_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("list_*.py")):
        digest.update(path.read_bytes())
    return f"sha{digest.hexdigest()[:16]}"


def _csr(rows: Sequence[int], values: Sequence[int], count: int) -> tuple[Ints, Ints]:
    keys = np.asarray(rows, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    ptr = np.searchsorted(keys[order], np.arange(count + 1)).astype(np.int64)
    return ptr, np.asarray(values, dtype=np.int64)[order]


def _by_destination(edges: Sequence[Edge], tensor_ptr: Ints, count: int) -> tuple[Ints, Ints, Ints]:
    destinations = [edge.dst for edge in edges]
    ptr, sources = _csr(destinations, [edge.src for edge in edges], count)
    first = tensor_ptr.tolist()
    tensors = [first[edge.src] + edge.output for edge in edges]
    return ptr, sources, _csr(destinations, tensors, count)[1]


def _readers(graph: DataflowGraph, joined: Sequence[Edge], tensor_ptr: Ints) -> Ints:
    readers_T = np.zeros(int(tensor_ptr[-1]), dtype=np.int64)
    first = tensor_ptr.tolist()
    np.add.at(readers_T, [first[edge.src] + edge.output for edge in joined], 1)
    carried = {first[edge.src] + edge.output for edge in graph.edges if edge.distance}
    readers_T[sorted(carried)] += 1
    return readers_T


def _transfer_times(mask: Mask) -> tuple[Floats, Floats]:
    count = mask.num_devices
    latency_DD = np.full((count, count), np.inf)
    per_byte_DD = np.zeros((count, count))
    np.fill_diagonal(latency_DD, 0.0)
    for (src, dst), link in mask.problem.cluster.link_table.items():
        latency_DD[src, dst] = link.latency_ns
        per_byte_DD[src, dst] = 0.0 if link.bytes_per_s is None else 1e9 / link.bytes_per_s
    return latency_DD, per_byte_DD
