"""Literal searches for the best schedule, devices may wait on purpose: oracles for tiny problems.

`best_free_order`: links that hold nothing; every placement with every order of ops.
`best_start_times`: any links; every placement with every integer start time, transfers in the order
in which their producers end.
"""

import itertools

import numpy as np
from numba import njit

from doppler.planners.mask import make_mask


def best_free_order(problem, costs):
    """The least makespan; one unit per op, dispatch costs 0, links without bandwidth."""
    mask = make_mask(problem)
    num_ops, num_devices = problem.graph.num_ops, mask.num_devices
    before = np.zeros((num_ops, num_ops), np.bool_)
    for edge in problem.graph.edges:
        before[edge.src, edge.dst] |= edge.distance == 0
    latency = np.zeros((num_devices, num_devices), np.int64)
    for (src, dst), link in problem.cluster.link_table.items():
        latency[src, dst] = link.latency_ns
    streams = np.array([device.num_streams for device in problem.cluster.devices], np.int64)
    times = np.array(costs.op_ns, np.int64)
    return int(_search(times, before, latency, streams, np.asarray(mask.allowed_UD)))


@njit(cache=True)
def _search(times, before, latency, streams, allowed):
    """Depth first over (op, device) pairs appended one after another, on the first free stream."""
    num_ops, num_devices = times.shape
    most = streams.max()
    free = np.zeros((num_ops + 1, num_devices, most), np.int64)
    free[0, :, :] = 0
    place = np.full(num_ops, -1, np.int64)
    end = np.zeros(num_ops, np.int64)
    length = np.zeros(num_ops + 1, np.int64)
    choice = np.full(num_ops + 1, -1, np.int64)
    chosen = np.full(num_ops, -1, np.int64)
    best = times.sum() + latency.max() * num_ops + 1
    depth = 0
    while depth >= 0:
        if choice[depth] >= 0 and depth < num_ops and chosen[depth] >= 0:
            place[chosen[depth]] = -1
            chosen[depth] = -1
        choice[depth] += 1
        if depth == num_ops or choice[depth] >= num_ops * num_devices:
            if depth == num_ops:
                best = min(best, length[depth])
            choice[depth] = -1
            depth -= 1
            continue
        op, device = choice[depth] // num_devices, choice[depth] % num_devices
        if place[op] >= 0 or not allowed[op, device]:
            continue
        start = np.int64(0)
        possible = True
        for other in range(num_ops):
            if before[other, op]:
                if place[other] < 0:
                    possible = False
                    break
                start = max(start, end[other] + latency[place[other], device])
        if not possible:
            continue
        for d in range(num_devices):
            for s in range(most):
                free[depth + 1, d, s] = free[depth, d, s]
        row = free[depth + 1, device]
        stream = 0
        for s in range(streams[device]):
            if row[s] < row[stream]:
                stream = s
        start = max(start, row[stream])
        finish = start + times[op, device]
        if finish >= best:
            continue
        row[stream] = finish
        place[op], end[op], chosen[depth] = device, finish, op
        length[depth + 1] = max(length[depth], finish)
        depth += 1
    return best


def best_start_times(problem, costs, horizon):
    """The least makespan up to `horizon`, or None; one stream per device, dispatch costs 0."""
    mask = make_mask(problem)
    devices = [np.flatnonzero(row).tolist() for row in mask.allowed_UD]
    best = None
    for placement in itertools.product(*devices):
        value = _best_of_placement(problem, costs, placement, horizon if best is None else best - 1)
        best = value if value is not None else best
    return best


def _best_of_placement(problem, costs, placement, horizon):
    times = [row[device] for row, device in zip(costs.op_ns, placement, strict=True)]
    best = None
    for starts in itertools.product(*(range(horizon - time + 1) for time in times)):
        ends = [start + time for start, time in zip(starts, times, strict=True)]
        last = max(ends)
        if (best is None or last < best) and _is_valid(problem, placement, starts, ends):
            best = last
    return best


def _is_valid(problem, placement, starts, ends):
    for a, b in itertools.combinations(range(len(starts)), 2):
        if placement[a] == placement[b] and not (ends[a] <= starts[b] or ends[b] <= starts[a]):
            return False
    links, graph = problem.cluster.link_table, problem.graph
    sends = {
        (ends[e.src], e.src, e.output, placement[e.dst])
        for e in graph.edges
        if placement[e.src] != placement[e.dst]
    }
    free, arrivals = {}, {}
    # One bus per transfer: then first come first served is a plain loop in the order of requests.
    for request, op, output, dst in sorted(sends):
        link = links[placement[op], dst]
        begin = max([request, *(free.get(bus, 0) for bus in link.buses)])
        release = begin + link.occupancy_ns(graph.ops[op].outputs[output])
        free.update(dict.fromkeys(link.buses, release))
        arrivals[op, output, dst] = release + link.latency_ns
    return all(
        starts[e.dst] >= arrivals.get((e.src, e.output, placement[e.dst]), ends[e.src])
        for e in graph.edges
    )
