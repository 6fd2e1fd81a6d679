"""Versions of tensors in memory: who still reads them, which one is the newest."""

from simulator.engine.jit import STAMP, jit
from simulator.engine.tables import Tables
from simulator.engine.workspace import Workspace


@jit
def release(tab: Tables, ws: Workspace, tensor: int, device: int, version: int) -> None:
    """One reader less of a version; the last one frees its bytes."""
    index = (tensor * tab.num_devices + device) * tab.slots + (version & (tab.slots - 1))
    ws.readers[index] -= 1
    if ws.readers[index] == 0:
        ws.used[device] -= tab.tensor_bytes[tensor]


@jit
def place_version(tab: Tables, ws: Workspace, tensor: int, device: int, version: int) -> None:
    """Counts the readers of a version that is now in memory (its bytes are counted already)."""
    producer = ws.place[tab.tensor_op[tensor]]
    ws.scalars[STAMP] += 1
    stamp = ws.scalars[STAMP]
    count, is_latest = 0, False
    for edge in range(tab.tensor_ptr[tensor], tab.tensor_ptr[tensor + 1]):
        target = ws.place[tab.out_dst[edge]]
        if target == device:
            if tab.out_latest[edge]:
                is_latest = True
            elif version >= 0 or tab.out_distance[edge] >= -version:
                count += 1
        elif version >= 0 and device == producer and ws.served[target] != stamp:
            ws.served[target] = stamp
            count += 1
    index = (tensor * tab.num_devices + device) * tab.slots + (version & (tab.slots - 1))
    cell = tensor * tab.num_devices + device
    older = ws.newest[cell]
    newer = is_latest and version > older
    ws.readers[index] = count + (1 if newer else 0)
    if ws.readers[index] == 0:
        ws.used[device] -= tab.tensor_bytes[tensor]
    if newer:
        ws.newest[cell] = version
        if older > -tab.window:
            release(tab, ws, tensor, device, older)
