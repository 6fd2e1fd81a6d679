"""How long the pretrained policies take to plan a graph, from problem and costs to a plan.

One greedy episode on 8 devices, one thread, compiled code warm: arrays of the problem, features,
message passing, the episode, the checked plan. Beside it compiled HEFT with insertion: one run on
prepared arrays (`over_heft_compiled`, in HEFT's favour), and all the way from problem and costs to
a checked plan (`over_heft_whole`).

    python benchmarks/plan_time.py [--repeats 5] [--quick]
"""

import argparse
import math
import time
from collections.abc import Callable

import numpy as np
from support.common import finish

from doppler.core.plan import Plan, make_plan
from doppler.curriculum import Pair
from doppler.graphs.families import generate
from doppler.planners.list_schedule import make_list_scheduler
from doppler.policies.build import build_assignment
from doppler.policies.dual import DualPolicy, policy_inputs
from doppler.policies.pretrained import load_pretrained
from doppler.policies.sampling import SampleMode, plan_arrays
from doppler.training.learner import torch_threads

TARGETS = {"growth_exponent": "<= 1.1", "over_heft_compiled": "<= 60"}
SEED = 0
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
NUM_DEVICES = 8


def problem_of(num_ops: int) -> Pair:
    """Layers of 25 ops: size grows, width does not."""
    instance = generate(
        "layered",
        num_ops,
        NUM_DEVICES,
        ccr=1.0,
        heterogeneity=0.3,
        seed=SEED,
        shape={"layers": num_ops // 25},
    )
    return instance.problem, instance.costs


def greedy_plan(policy: DualPolicy, pair: Pair) -> Plan:
    """The whole way from a problem and its costs to a plan."""
    problem, costs = pair
    inputs = policy_inputs(build_assignment(problem, costs), policy.config)
    rollouts = policy.sample(inputs, 1, np.random.default_rng(SEED), mode=SampleMode.greedy)
    placements, priorities = plan_arrays(inputs.assignment, rollouts)
    placement, priority = placements[0].tolist(), priorities[0].tolist()
    return make_plan(problem, tuple(placement), tuple(priority), "greedy")


def heft_plan(pair: Pair) -> Plan:
    """The same way for HEFT."""
    problem, costs = pair
    lists = make_list_scheduler(problem, costs)
    schedule = lists.heft()
    placement = lists.mask.placement(schedule.devices_U[None])[0].tolist()
    return make_plan(problem, tuple(placement), tuple(schedule.priority_V.tolist()), "heft")


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Median CPU seconds after one run to warm up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="sizes up to 10,000 ops")
    arguments = parser.parse_args()
    policy = load_pretrained()
    sizes = SIZES[:3] if arguments.quick else SIZES
    points: list[tuple[int, float]] = []
    ratio = whole_ratio = math.nan
    with torch_threads(1):
        for size in sizes:
            pair = problem_of(size)
            repeats = arguments.repeats if size <= 10_000 else 1
            took = seconds(lambda pair=pair: greedy_plan(policy, pair), repeats)  # type: ignore[misc]
            points.append((size, took))
            print(f"{size:7d} ops: {1e3 * took:10.1f} ms")
            if size == sizes[0]:
                lists = make_list_scheduler(*pair)
                heft = seconds(lists.heft, 4 * arguments.repeats)
                whole = seconds(lambda pair=pair: heft_plan(pair), repeats)  # type: ignore[misc]
                ratio, whole_ratio = took / heft, took / whole
                print(f"{size:7d} ops: {1e3 * heft:10.3f} ms compiled HEFT with insertion")
    x, y = np.log(np.array(points)).T
    figures = {
        "growth_exponent": float(np.polyfit(x, y, 1)[0]),
        "over_heft_compiled": ratio,
        "over_heft_whole": whole_ratio,
        "ms_1000": 1e3 * points[0][1],
        "s_largest": points[-1][1],
        "largest_ops": points[-1][0],
    }
    if not arguments.quick:
        figures["s_100000"] = points[-1][1]
    finish("plan_time", figures, TARGETS, seed=SEED)


if __name__ == "__main__":
    main()
