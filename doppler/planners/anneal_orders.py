"""Annealing over orders: HEFT places the ops of an order, the runtime's own rule scores the plan.

Finds good plans of layered graphs quickly; explicit devices (`annealing`) find those that no order
leads to. Several chains walk side by side, so that every call decodes and scores a batch.

Source: Kirkpatrick et al. 1983; Topcuoglu et al. 2002; moves as in the project's portfolio study.
"""

import numpy as np

from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.runtime import INFEASIBLE_NS, Scorer
from doppler.planners.base import Budget
from doppler.planners.decode import first_fit, score_keys
from doppler.planners.evaluator import Evaluator
from doppler.planners.list_schedule import ListScheduler, make_list_scheduler
from doppler.planners.mask import Ints
from doppler.planners.tables import Floats

KEY_SHIFT = 0.15
HOT, COLD = 0.01, 0.0003
CALLS_PER_CHAIN = 5_000
MAX_CHAINS = 8


def plan(problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator) -> Plan:
    """Returns the best plan of an annealing run over orders that starts from upward ranks.

    Raises:
        CapacityError: If no plan that was scored fits in memory.
        PlanError: If no placement obeys pins, kinds, groups and links.
    """
    return anneal_from(problem, scorer, budget, rng, None)


def anneal_from(
    problem: Problem, scorer: Scorer, budget: Budget, rng: np.random.Generator, start: Plan | None
) -> Plan:
    """Returns the best plan of an annealing run from the order of a plan; None = upward ranks."""
    lists = make_list_scheduler(problem, scorer.costs)
    evaluator = Evaluator(problem, scorer, budget, "annealing_keys")
    keys_V = None if start is None else np.asarray(start.priority, dtype=np.float64)
    if walk_orders(lists, evaluator, rng, budget.calls, HOT, COLD, keys_V) is None:
        first = lists.heft()
        evaluator.score(lists.mask.placement(first.devices_U)[None], first.priority_V[None])
    return evaluator.plan()


def walk_orders(
    lists: ListScheduler,
    evaluator: Evaluator,
    rng: np.random.Generator,
    calls: int,
    hot: float,
    cold: float,
    start_V: Floats | None = None,
) -> tuple[int, Ints, Ints] | None:
    """Returns (value, device per unit, priority per op) of the best order met.

    None if the budget is spent, there is nothing to order, or the start leads to a dead end.
    Moves: two keys swapped, or one key shifted by 0.15 max(keys) N(0, 1), half each.

    Args:
        lists: Places orders.
        evaluator: Scores.
        rng: The only source of randomness.
        calls: Plans that may be scored.
        hot: First temperature as a part of the best value so far.
        cold: Last temperature, likewise.
        start_V: Keys to start from; None = upward ranks.
    """
    ops = np.flatnonzero(lists.mask.unit_V >= 0)
    calls = min(calls, evaluator.remaining)
    last_call = evaluator.remaining - calls
    if calls < 1 or not len(ops):
        return None
    first_V = lists.ranks_V if start_V is None else start_V
    fit, start = first_fit(lists, evaluator, first_V[None])
    best = (int(start.values_B[0]), start.devices_BU[0], start.priority_BV[0])
    if best[0] >= INFEASIBLE_NS:
        return None
    chains = min(MAX_CHAINS, 1 + calls // CALLS_PER_CHAIN)
    keys_CV = np.tile(first_V, (chains, 1))
    values_C = np.full(chains, best[0])
    span, scale = KEY_SHIFT * float(first_V.max()), float(evaluator.best_ns)
    steps = (evaluator.remaining - last_call) // chains
    for step in range(steps):
        temperature = scale * hot * (cold / hot) ** (step / max(1, steps - 1))
        slack_C = -temperature * np.log(1.0 - rng.random(chains))
        bounds_C = values_C + slack_C.astype(np.int64)
        trial_CV = _moved(keys_CV, ops, span, rng)
        decoded = score_keys(lists, evaluator, trial_CV, fit, bounds_C)
        accepted = decoded.values_B <= bounds_C
        keys_CV[accepted] = trial_CV[accepted]
        values_C[accepted] = decoded.values_B[accepted]
        chain = int(values_C.argmin())
        if accepted[chain] and values_C[chain] < best[0]:
            best = (int(values_C[chain]), decoded.devices_BU[chain], decoded.priority_BV[chain])
    return best


def _moved(keys_CV: Floats, ops: Ints, span: float, rng: np.random.Generator) -> Floats:
    chains = np.arange(len(keys_CV))
    trial_CV = keys_CV.copy()
    one_C, other_C = ops[rng.integers(len(ops), size=(2, len(chains)))]
    swaps_C = rng.random(len(chains)) < 0.5
    shifts_C = span * rng.standard_normal(len(chains))
    trial_CV[chains, one_C] = np.where(
        swaps_C, keys_CV[chains, other_C], keys_CV[chains, one_C] + shifts_C
    )
    trial_CV[chains, other_C] = np.where(swaps_C, keys_CV[chains, one_C], trial_CV[chains, other_C])
    return trial_CV
