"""Literal searches for the best schedule, devices may wait on purpose: oracles for tiny problems.

`best_free_order`: links that hold nothing; every placement with every order of ops.
`best_start_times`: any links; every placement with every integer start time, transfers in the order
in which their producers end; producers that end at once may have any ranks.
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
    """The least makespan up to `horizon`, or None; one stream per device, dispatch costs 0.

    Ops are numbered in topological order and every link has at most one bus.
    """
    mask, graph = make_mask(problem), problem.graph
    devices = [np.flatnonzero(row).tolist() for row in mask.allowed_UD]
    edge_ends = np.array([(e.src, e.dst) for e in graph.edges], np.int64).reshape(-1, 2)
    ranks = np.array(list(itertools.permutations(range(graph.num_ops))), np.int64)
    best = None
    for placement in itertools.product(*devices):
        times = [row[device] for row, device in zip(costs.op_ns, placement, strict=True)]
        sends, edge_sends = _sends(problem, placement)
        limit = horizon if best is None else best - 1
        value = _least(
            np.array(times), np.array(placement), edge_ends, edge_sends, sends, ranks, limit
        )
        best = int(value) if value >= 0 else best
    return best


def _sends(problem, placement):
    """Rows (op, bus, occupancy, latency) by (op, output, destination), and the send of each edge.

    Bus -1 is none; an edge that stays on its device has send -1.
    """
    links, graph = problem.cluster.link_table, problem.graph
    buses = sorted({bus for link in links.values() for bus in link.buses})
    keys = [(e.src, e.output, placement[e.dst]) for e in graph.edges]
    crossing = sorted({key for key in keys if placement[key[0]] != key[2]})
    rows = []
    for op, output, dst in crossing:
        link = links[placement[op], dst]
        bus = buses.index(link.buses[0]) if link.buses else -1
        rows.append((op, bus, link.occupancy_ns(graph.ops[op].outputs[output]), link.latency_ns))
    number = {key: index for index, key in enumerate(crossing)}
    edge_sends = [number.get(key, -1) for key in keys]
    return np.array(rows, np.int64).reshape(-1, 4), np.array(edge_sends, np.int64)


@njit(cache=True)
def _least(times, place, edge_ends, edge_sends, sends, ranks, limit):
    """Depth first over the start of each op, every integer; -1 where nothing ends by `limit`."""
    num_ops = len(times)
    starts = np.full(num_ops, -1, np.int64)
    ends = np.zeros(num_ops, np.int64)
    best, depth = np.int64(-1), 0
    while depth >= 0:
        if depth == num_ops:
            # Without producers that end at once, all ranks give one order of transfers.
            tied = len(np.unique(ends[sends[:, 0]])) < len(np.unique(sends[:, 0]))
            for rank in ranks if tied else ranks[:1]:
                if _arrives(starts, ends, rank, edge_ends, edge_sends, sends):
                    best = ends.max()
                    limit = best - 1
                    break
            depth -= 1
            continue
        starts[depth] += 1
        ends[depth] = starts[depth] + times[depth]
        if ends[depth] > limit:
            starts[depth] = -1
            depth -= 1
            continue
        fits = True
        for e in range(len(edge_ends)):
            if edge_ends[e, 1] == depth and ends[edge_ends[e, 0]] > starts[depth]:
                fits = False
        for other in range(depth):
            if place[other] == place[depth]:
                apart = ends[other] <= starts[depth] or ends[depth] <= starts[other]
                fits = fits and apart and ends[other] <= limit
        if fits:
            depth += 1
    return best


@njit(cache=True)
def _arrives(starts, ends, rank, edge_ends, edge_sends, sends):
    """True if all inputs are there when their consumers start: first come, first served."""
    count = len(sends)
    order = np.arange(count)
    for i in range(1, count):  # stable: by output and destination where the producer is the same
        j = i
        while j > 0:
            op, before = sends[order[j], 0], sends[order[j - 1], 0]
            if ends[op] > ends[before] or (ends[op] == ends[before] and rank[op] >= rank[before]):
                break
            order[j], order[j - 1] = order[j - 1], order[j]
            j -= 1
    free = np.zeros(sends[:, 1].max() + 2 if count else 1, np.int64)
    arrival = np.zeros(count + 1, np.int64)
    for send in order:
        op, bus, occupancy, latency = sends[send]
        begin = ends[op] if bus < 0 else max(ends[op], free[bus])
        if bus >= 0:
            free[bus] = begin + occupancy
        arrival[send] = begin + occupancy + latency
    for e in range(len(edge_ends)):
        ready = ends[edge_ends[e, 0]] if edge_sends[e] < 0 else arrival[edge_sends[e]]
        if starts[edge_ends[e, 1]] < ready:
            return False
    return True
