"""Compiled episodes: SEL's softmax over candidates by a sum tree, PLC's softmax over devices.

A step costs O(log V) for SEL and O(D (F + K)) for PLC, so an episode is near-linear in V. Every
episode has its own random state: the result does not depend on threads or batch size.
"""

from typing import NamedTuple

import numpy as np

from doppler.policies.assignment import Bools, Floats, Ints
from doppler.policies.device_columns import set_columns
from doppler.policies.device_logits import Tile, make_tile, set_logits
from doppler.policies.tables import Heads, Singles, Tables, Workspace, make_workspace
from doppler.policies.timeline import FINISH, START, place, reset, set_mask, set_times
from simulator.machine_code import cached, inlined

SAMPLE, GREEDY, REPLAY = 0, 1, 2
MIN_EXPONENT = -600.0


class EpisodeArrays(NamedTuple):
    """What episodes write, one row per episode; steps t, ops v.

    Where `columns` has no steps the episodes are not recorded: orders, devices and spans are all
    that is worked out, and the other arrays are not touched.

    Attributes:
        orders: Op selected at step t; B x N.
        devices: Its device; B x N.
        arrivals: Step from which op v was a candidate; B x N.
        columns: Device columns at step t, zeros where there was no choice; B x N x D x F.
        masks: Devices allowed at step t; B x N x D.
        teacher: Devices of smallest earliest finish at step t; B x N x D.
        teacher_select: Sum over steps of [op v has the largest b-level of the candidates] / ties;
            B x N.
        select_log_probs, place_log_probs: Of the choices; B x N.
        spans: End of the timeline; B.
    """

    orders: Ints
    devices: Ints
    arrivals: Ints
    columns: Singles
    masks: Bools
    teacher: Bools
    teacher_select: Floats
    select_log_probs: Floats
    place_log_probs: Floats
    spans: Floats


@inlined()
def uniform(state: np.ndarray) -> float:  # type: ignore[type-arg]
    """Returns the next number in [0, 1): splitmix64."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@inlined()
def tree_set(tree: Floats, size: int, leaf: int, weight: float) -> None:
    """Sets one leaf of a sum tree; the root is tree[1]."""
    node = size + leaf
    tree[node] = weight
    node >>= 1
    while node >= 1:
        tree[node] = tree[2 * node] + tree[2 * node + 1]
        node >>= 1


@inlined()
def _tree_draw(tree: Floats, size: int, uniform: float) -> int:
    """Returns a leaf with probability proportional to its weight."""
    target = uniform * tree[1]
    node = 1
    while node < size:
        node *= 2
        if tree[node + 1] > 0.0 and (target >= tree[node] or tree[node] == 0.0):
            target -= tree[node]
            node += 1
    return node - size


@inlined()
def _best_set(tree: Ints, size: int, leaf: int, value: int, scores: Floats) -> None:
    """Sets one leaf of a tournament over scores; entries are ops, -1 = none."""
    node = size + leaf
    tree[node] = value
    node >>= 1
    while node >= 1:
        left, right = tree[2 * node], tree[2 * node + 1]
        if left < 0 or (right >= 0 and scores[right] > scores[left]):
            tree[node] = right
        else:
            tree[node] = left
        node >>= 1


@inlined()
def _best_device(s: Workspace) -> int:
    """Returns the device of the largest logit."""
    best = -1
    for device in range(len(s.mask)):
        if s.mask[device] and (best < 0 or s.logits[device] > s.logits[best]):
            best = device
    return best


@inlined()
def _choose_device(
    s: Workspace,
    best: int,
    mode: int,
    temperature: float,
    state: np.ndarray,
    forced: int,  # type: ignore[type-arg]
) -> tuple[int, float]:
    """Returns (device, log-probability) of the masked softmax over the logits."""
    num_devices = len(s.mask)
    total = 0.0
    top = s.logits[best]
    for device in range(num_devices):
        if s.mask[device]:
            total += np.exp((s.logits[device] - top) / temperature)
    choice = best
    if mode == REPLAY:
        choice = forced
    elif mode == SAMPLE:
        target = uniform(state) * total
        for device in range(num_devices):
            if s.mask[device]:
                choice = device
                target -= np.exp((s.logits[device] - top) / temperature)
                if target < 0.0:
                    break
    return choice, (s.logits[choice] - top) / temperature - np.log(total)


@inlined()
def _record_devices(
    s: Workspace, row: int, step: int, num_columns: int, out: EpisodeArrays
) -> None:
    """Writes down the device columns and the teacher's devices."""
    num_devices, earliest = len(s.mask), np.inf
    for d in range(num_devices):
        if s.mask[d]:
            earliest = min(earliest, s.scratch[FINISH, d])
        for column in range(num_columns):
            out.columns[row, step, d, column] = s.columns[d, column]
    for d in range(num_devices):
        late = s.scratch[FINISH, d] - earliest
        out.teacher[row, step, d] = s.mask[d] and late <= 1e-9 * (1.0 + earliest)


@inlined()
def _top_tie(ties: Ints, blocks: Ints) -> int:
    block = 0
    while blocks[block] == 0:
        block += 1
    tie = block << 6
    while ties[tie] == 0:
        tie += 1
    return tie


@inlined()
def _take_earliest_start(t: Tables, s: Workspace, op: int, forced: int) -> int:
    """Leaves one device in the mask: `forced`, or where it is -1 that of the earliest start."""
    num_devices = len(s.mask)
    best = forced
    if forced < 0:
        set_times(t, s, op, 0, num_devices)
        for device in range(num_devices):
            if s.mask[device] and (best < 0 or s.scratch[START, device] < s.scratch[START, best]):
                best = device
    for device in range(num_devices):
        s.mask[device] = device == best
    return 1


class _Queue(NamedTuple):
    """The candidates of one episode, for SEL and for its teacher.

    Attributes:
        scores, weights: Of SEL; N. The weights are exp((score - largest) / temperature).
        tree: Sum tree of the candidates' weights.
        best: Tournament of their scores, -1 = none; kept where the best one is taken.
        ties: Candidates per rank of b-level.
        blocks: The same for 64 ranks at a time.
        credit: Sum over the steps of 1 / ties while a rank was the first one.
        entry: Credit of an op's rank when it became a candidate; N.
    """

    scores: Floats
    weights: Floats
    tree: Floats
    best: Ints
    ties: Ints
    blocks: Ints
    credit: Floats
    entry: Floats


@cached()
def _make_queue(t: Tables, h: Heads, temperature: float) -> _Queue:
    num_ops = len(t.tie_class)
    size = 1
    while size < num_ops:
        size *= 2
    scores = -t.tie_class.astype(np.float64) if h.fixed_select else h.scores
    num_ties = t.tie_class.max() + 1
    return _Queue(
        scores,
        np.exp(np.maximum((scores - scores.max()) / temperature, MIN_EXPONENT)),
        np.zeros(2 * size),
        np.full(2 * size, -1, np.int64),
        np.zeros(num_ties, np.int64),
        np.zeros((num_ties >> 6) + 1, np.int64),
        np.zeros(num_ties),
        np.zeros(num_ops),
    )


@inlined()
def _push(t: Tables, q: _Queue, op: int, ranked: bool, recorded: bool) -> None:
    """Adds a candidate; only a choice without a draw that nobody records needs no sums."""
    size = len(q.tree) >> 1
    if ranked:
        _best_set(q.best, size, op, op, q.scores)
        if not recorded:
            return
    tree_set(q.tree, size, op, q.weights[op])
    tie = t.tie_class[op]
    q.entry[op] = q.credit[tie]
    q.ties[tie] += 1
    q.blocks[tie >> 6] += 1


@inlined()
def _pop(t: Tables, q: _Queue, op: int, ranked: bool, recorded: bool) -> None:
    """Takes a candidate out."""
    size = len(q.tree) >> 1
    if ranked:
        _best_set(q.best, size, op, -1, q.scores)
        if not recorded:
            return
    tree_set(q.tree, size, op, 0.0)
    tie = t.tie_class[op]
    q.ties[tie] -= 1
    q.blocks[tie >> 6] -= 1


@cached()
def run_episodes(
    t: Tables,
    h: Heads,
    mode: int,
    select_temperature: float,
    place_temperature: float,
    seeds: np.ndarray,
    first: int,
    last: int,
    out: EpisodeArrays,  # type: ignore[type-arg]
) -> None:
    """Runs episodes `first` to `last` - 1; REPLAY reads `out.orders` and `out.devices`."""
    s = make_workspace(t, len(h.output), h.dynamic.shape[0])
    q = _make_queue(t, h, select_temperature)
    tile = make_tile(h)
    state = np.zeros(1, np.uint64)
    for row in range(first, last):
        reset(t, s)
        state[0] = seeds[row]
        _run_episode(t, h, s, q, tile, state, mode, place_temperature, row, out)


@inlined()
def _run_episode(
    t: Tables,
    h: Heads,
    s: Workspace,
    q: _Queue,
    tile: Tile,
    state: np.ndarray,
    mode: int,
    temperature: float,
    row: int,
    out: EpisodeArrays,  # type: ignore[type-arg]
) -> None:
    """Runs one episode; the workspace is empty and so is the queue."""
    num_ops, num_devices = t.work.shape
    num_columns = h.dynamic.shape[0]
    ranked = mode == GREEDY or h.fixed_select
    recorded = out.columns.shape[1] == num_ops
    for tie in range(len(q.credit)):
        q.credit[tie] = 0.0
    for op in range(num_ops):
        if s.missing[op] == 0:
            if recorded:
                out.arrivals[row, op] = 0
            _push(t, q, op, ranked, recorded)
    span = 0.0
    for step in range(num_ops):
        if recorded:
            top = _top_tie(q.ties, q.blocks)
            q.credit[top] += 1.0 / q.ties[top]
        if mode == REPLAY:
            op = out.orders[row, step]
        elif ranked:
            op = q.best[1]
        else:
            op = _tree_draw(q.tree, len(q.tree) >> 1, uniform(state))
        out.orders[row, step] = op
        if recorded and not h.fixed_select:
            out.select_log_probs[row, step] = np.log(q.weights[op]) - np.log(q.tree[1])
        _pop(t, q, op, ranked, recorded)
        if recorded:
            out.teacher_select[row, op] = q.credit[t.tie_class[op]] - q.entry[op]
        choices = set_mask(t, s, op)
        if h.fixed_place and choices > 1:
            forced = out.devices[row, step] if mode == REPLAY else -1
            choices = _take_earliest_start(t, s, op, forced)
        if choices == 1:
            device = 0
            while not s.mask[device]:
                device += 1
            set_times(t, s, op, device, device + 1)
            if recorded:
                out.place_log_probs[row, step] = 0.0
                out.teacher[row, step, device] = True
        else:
            set_columns(t, s, op, step, num_columns)
            set_logits(h, s, op, tile)
            device, log_prob = _best_device(s), 0.0
            if mode != GREEDY or recorded:
                forced = out.devices[row, step]
                device, log_prob = _choose_device(s, device, mode, temperature, state, forced)
            if recorded:
                out.place_log_probs[row, step] = log_prob
                _record_devices(s, row, step, num_columns, out)
        if recorded:
            for d in range(num_devices):
                out.masks[row, step, d] = s.mask[d]
        out.devices[row, step] = device
        place(t, s, op, device)
        for k in range(len(h.output)):
            s.sums[device, k] += h.placed[op, k]
        span = max(span, s.end[op])
        for slot in range(t.out_ptr[op], t.out_ptr[op + 1]):
            consumer = t.out_dst[slot]
            s.missing[consumer] -= 1
            if s.missing[consumer] == 0:
                if recorded:
                    out.arrivals[row, consumer] = step + 1
                _push(t, q, consumer, ranked, recorded)
    out.spans[row] = span
