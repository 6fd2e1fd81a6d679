"""METIS: balanced minimum cuts of the graph; it knows bytes and work, but no order and no time.

Needs the optional dependency `metis` (pymetis).
"""

import numpy as np
from scipy.optimize import linear_sum_assignment

from doppler.core.errors import ConfigError
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import Scorer
from doppler.graphs.levels import mean_op_ns, priorities_of, upward_ranks
from doppler.planners.base import Budget
from doppler.planners.evaluator import Evaluator
from doppler.planners.mask import NO_UNIT, Ints, Mask, make_mask

MAX_SEEDS = 32
MAX_WEIGHT = 1_000_000
IMBALANCES = (30, 100, 300)
"""Allowed load above the mean in 1/1000 (METIS's own default is 30); seeds take turns."""


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best of up to 32 cuts, parts on devices so that total time is least.

    Vertices are the units (weight: mean time), edges carry the bytes between two units. Ops run by
    upward rank. Parts that kinds, pins, links or state forbid go to the next devices, as in
    `Mask.complete`.

    Raises:
        ConfigError: If pymetis is not installed.
        CapacityError: If no cut fits in memory; METIS is told nothing of it.
        PlanError: If no placement obeys pins, kinds, groups and links.

    Source: Karypis and Kumar 1998.
    """
    mask = make_mask(problem)
    evaluator = Evaluator(problem, scorer, budget, "metis")
    priority_V = priorities_of(upward_ranks(problem, scorer.costs), problem.graph)
    times_UD = _unit_times(mask, np.asarray(scorer.costs.op_ns, dtype=np.float64))
    work_U = _unit_times(mask, mean_op_ns(problem, scorer.costs)[:, None])[:, 0]
    rows: list[Ints] = []
    for number in range(min(MAX_SEEDS, budget.calls)):
        imbalance = IMBALANCES[number % len(IMBALANCES)]
        part_U = _cut(mask, work_U, int(rng.integers(2**31 - 1)), imbalance)
        rows.append(mask.complete(mask.prefer_devices(_on_devices(mask, part_U, times_UD))))
    evaluator.score(mask.placement(np.stack(rows)), np.tile(priority_V, (len(rows), 1)))
    return evaluator.plan()


def _unit_times(mask: Mask, times_VX: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    result = np.zeros((mask.num_units, times_VX.shape[1]))
    placed = np.flatnonzero(mask.unit_V != NO_UNIT)
    np.add.at(result, mask.unit_V[placed], times_VX[placed])
    return result


def _cut(mask: Mask, work_U: np.ndarray, seed: int, imbalance: int) -> Ints:  # type: ignore[type-arg]
    """Part per unit, int64[U]."""
    try:
        import pymetis  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ConfigError(
            "planner 'metis' needs pymetis, which is not installed: pip install "
            "'doppler-placement[metis]'"
        ) from error
    if mask.num_devices == 1 or mask.num_units < 2:
        return np.zeros(mask.num_units, dtype=np.int64)
    weights = _cut_weights(mask)
    neighbours: list[list[int]] = [[] for _ in range(mask.num_units)]
    sizes: list[list[int]] = [[] for _ in range(mask.num_units)]
    for (a, b), size in sorted(weights.items()):
        neighbours[a].append(b)
        neighbours[b].append(a)
        sizes[a].append(size)
        sizes[b].append(size)
    _, parts = pymetis.part_graph(
        mask.num_devices,
        pymetis.CSRAdjacency(
            adj_starts=np.cumsum([0, *map(len, neighbours)]).tolist(),
            adjacent=[other for row in neighbours for other in row],
        ),
        vweights=_scaled(work_U).tolist(),
        eweights=[size for row in sizes for size in row],
        recursive=False,
        options=pymetis.Options(seed=seed, ufactor=imbalance),
    )
    return np.asarray(parts, dtype=np.int64)


def _cut_weights(mask: Mask) -> dict[tuple[int, int], int]:
    """Bytes between each pair of units (a < b), a tensor once per pair, scaled for METIS."""
    graph, units = mask.problem.graph, mask.unit_V.tolist()
    tensors: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for edge in graph.edges:
        a, b = units[edge.src], units[edge.dst]
        if NO_UNIT not in (a, b) and a != b:
            tensors.setdefault((min(a, b), max(a, b)), set()).add((edge.src, edge.output))
    sizes = [sum(graph.ops[op].outputs[k] for op, k in keys) for keys in tensors.values()]
    return dict(zip(tensors, _scaled(np.asarray(sizes, dtype=np.float64)).tolist(), strict=True))


def _scaled(values: np.ndarray) -> Ints:  # type: ignore[type-arg]
    """Integers from 1 to a million: METIS takes 32 bits and no zeros."""
    largest = float(values.max(initial=0.0))
    if largest <= 0.0:
        return np.ones(len(values), dtype=np.int64)
    return np.maximum(1, np.rint(values * (MAX_WEIGHT / largest))).astype(np.int64)


def _on_devices(mask: Mask, part_U: Ints, times_UD: np.ndarray) -> Ints:  # type: ignore[type-arg]
    """Parts on devices, one each, so that the total time is least; barred units weigh heavily."""
    barred = (~mask.allowed_UD) * (1.0 + times_UD.sum())
    cost_PD = np.zeros((mask.num_devices, mask.num_devices))
    np.add.at(cost_PD, part_U, times_UD + barred)
    _, device_P = linear_sum_assignment(cost_PD)
    return np.asarray(device_P[part_U], dtype=np.int64)
