"""Devices that can change places without changing any schedule, exactly: proofs may use it."""

import numpy as np

from doppler.core.costs import Costs
from doppler.planners.mask import Ints, Mask


def device_classes(mask: Mask, costs: Costs) -> list[list[int]]:
    """Returns the classes of interchangeable devices, each ascending, those of one device too.

    Two devices are interchangeable if exchanging them maps times, allowed units, streams, memory,
    links and parents onto themselves, and the wires onto wires. Any exchange of two devices of a
    class does so, hence so does every permutation of a class.
    """
    classes: list[list[int]] = []
    for device in range(mask.num_devices):
        for members in classes:
            if all(_can_swap(mask, costs, device, other) for other in members):
                members.append(device)
                break
        else:
            classes.append([device])
    return classes


def relabel_by_first_use(devices_U: Ints, order_U: list[int], classes: list[list[int]]) -> Ints:
    """Returns the new device per device, int64[D], so that each class is used in ascending order.

    Args:
        devices_U: Device per unit.
        order_U: Units in the order in which they use devices.
        classes: Classes of interchangeable devices.
    """
    new_D = np.arange(sum(len(members) for members in classes), dtype=np.int64)
    for members in classes:
        used = [int(devices_U[unit]) for unit in order_U if devices_U[unit] in members]
        first = list(dict.fromkeys(used))
        first += [device for device in members if device not in first]
        for device, new in zip(first, members, strict=True):
            new_D[device] = new
    return new_D


def _can_swap(mask: Mask, costs: Costs, a: int, b: int) -> bool:
    cluster = mask.problem.cluster
    swap = list(range(mask.num_devices))
    swap[a], swap[b] = b, a
    first, second = cluster.devices[a], cluster.devices[b]
    if (first.num_streams, first.copy_engines) != (second.num_streams, second.copy_engines):
        return False
    if mask.limit_D[a] != mask.limit_D[b] or costs.dispatch_ns[a] != costs.dispatch_ns[b]:
        return False
    if (mask.allowed_UD[:, a] != mask.allowed_UD[:, b]).any():
        return False
    if any(row[a] != row[b] for row in costs.op_ns):
        return False
    siblings = {(d, other) for d, others in enumerate(cluster.siblings) for other in others}
    if {(swap[d], swap[other]) for d, other in siblings} != siblings:
        return False
    return _links_map_onto_links(mask, swap)


def _links_map_onto_links(mask: Mask, swap: list[int]) -> bool:
    links = mask.problem.cluster.link_table
    users: dict[str, set[tuple[int, int]]] = {}
    for (src, dst), link in links.items():
        other = links.get((swap[src], swap[dst]))
        if other is None:
            return False
        if (link.latency_ns, link.bytes_per_s) != (other.latency_ns, other.bytes_per_s):
            return False
        for bus in link.buses:
            users.setdefault(bus, set()).add((src, dst))
    before = sorted(sorted(pairs) for pairs in users.values())
    after = sorted(sorted((swap[src], swap[dst]) for src, dst in pairs) for pairs in users.values())
    return before == after
