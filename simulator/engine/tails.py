"""Least time from an op to the end of the pass under a plan: what early stops are decided by."""

from simulator.engine.jit import STAMP, jit
from simulator.engine.reset import fill_lasting
from simulator.engine.tables import Tables
from simulator.engine.workspace import Workspace


@jit
def fill_tails(tab: Tables, ws: Workspace) -> None:
    """Fills `tail_ns` and `path_ns`: longest chains of ops and transfers where nothing waits."""
    for index in range(tab.num_ops):
        op = tab.backwards[index]
        device = ws.place[op]
        tail = 0
        for tensor in range(tab.tensor_start[op], tab.tensor_start[op + 1]):
            for edge in range(tab.tensor_ptr[tensor], tab.tensor_ptr[tensor + 1]):
                if tab.out_distance[edge] > 0:
                    continue
                consumer = tab.out_dst[edge]
                target, after = ws.place[consumer], ws.path_ns[consumer]
                if target != device:
                    pair = device * tab.num_devices + target
                    after += tab.link_latency[pair] + tab.occupancy_ns[tensor, tab.link_rate[pair]]
                tail = max(tail, after)
        ws.tail_ns[op] = tail
        ws.path_ns[op] = tail
        if tab.runs[op]:
            ws.path_ns[op] += tab.dispatch_ns[device] + tab.op_ns[op, device]


@jit
def may_overflow(tab: Tables, ws: Workspace, iterations: int) -> bool:
    """True if a device may need more bytes than it has, whatever of the plan runs when."""
    fill_lasting(tab, ws)
    versions = min(iterations, tab.window + 2)
    for tensor in range(tab.tensor_op.size):
        op = tab.tensor_op[tensor]
        if not tab.runs[op]:
            continue
        size = tab.tensor_bytes[tensor] * (versions + tab.tensor_distance[tensor])
        ws.scalars[STAMP] += 1
        ws.served[ws.place[op]] = ws.scalars[STAMP]
        ws.used[ws.place[op]] += size
        for edge in range(tab.tensor_ptr[tensor], tab.tensor_ptr[tensor + 1]):
            device = ws.place[tab.out_dst[edge]]
            if ws.served[device] != ws.scalars[STAMP]:
                ws.served[device] = ws.scalars[STAMP]
                ws.used[device] += size
    overflows = False
    for device in range(tab.num_devices):
        overflows |= ws.used[device] > tab.memory_limit[device]
    return overflows
