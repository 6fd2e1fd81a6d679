"""Devices that can change names without changing a plan's value, and the alignment of labels.

Elites that differ only in the names of identical devices pull a policy in opposite directions;
aligned to one reference they pull together.
"""

import numpy as np
from scipy.optimize import linear_sum_assignment

from doppler.policies.assignment import Assignment, Ints


def device_classes(assignment: Assignment) -> Ints:
    """Returns a class per device; devices of one class are interchangeable, D."""
    num_devices = assignment.num_devices
    classes = np.arange(num_devices)
    for device in range(num_devices):
        for other in range(device):
            if classes[other] == other and _interchangeable(assignment, device, other):
                classes[device] = other
                break
    return classes


def align(devices_N: Ints, reference_N: Ints, classes_D: Ints) -> Ints:
    """Returns the devices relabelled within their classes so that most ops agree with a reference.

    Source: the assignment problem (Kuhn 1955) on the counts of agreeing ops.
    """
    num_devices = len(classes_D)
    counts = np.zeros((num_devices, num_devices), dtype=np.int64)
    np.add.at(counts, (devices_N, reference_N), 1)
    same_class = classes_D[:, None] == classes_D[None, :]
    gain = np.where(same_class, counts, -len(devices_N) - 1)
    rows, columns = linear_sum_assignment(-gain)
    relabel = np.empty(num_devices, dtype=np.int64)
    relabel[rows] = columns
    aligned: Ints = relabel[devices_N]
    return aligned


def _interchangeable(assignment: Assignment, a: int, b: int) -> bool:
    swap = np.arange(assignment.num_devices)
    swap[[a, b]] = swap[[b, a]]
    devices = assignment.problem.cluster.devices
    if devices[a].kind != devices[b].kind or devices[a].copy_engines != devices[b].copy_engines:
        return False
    columns = (assignment.work, assignment.allowed, assignment.input_ready)
    vectors = (assignment.num_streams, assignment.memory_bytes)
    squares = (assignment.latency, assignment.per_byte, _bus_counts(assignment))
    return (
        all(np.array_equal(table[:, swap], table) for table in columns)
        and all(np.array_equal(vector[swap], vector) for vector in vectors)
        and all(np.array_equal(table[np.ix_(swap, swap)], table) for table in squares)
    )


def _bus_counts(assignment: Assignment) -> Ints:
    """Links that share a bus with the link of each pair, D x D."""
    cluster = assignment.problem.cluster
    users: dict[str, int] = {}
    for link in cluster.link_table.values():
        for bus in link.buses:
            users[bus] = users.get(bus, 0) + 1
    counts = np.zeros((cluster.num_devices, cluster.num_devices), dtype=np.int64)
    for (src, dst), link in cluster.link_table.items():
        counts[src, dst] = sum(users[bus] for bus in link.buses)
    return counts
