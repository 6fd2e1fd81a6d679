"""What a policy is pretrained on: random problems, growing, and lessons made of them.

Held out, for `benchmarks/zero_shot.py`: the families `HELD_OUT` and every generated graph of more
than `MAX_OPS` ops.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from doppler.api import make_scorer
from doppler.core.costs import Costs
from doppler.core.errors import ConfigError, nearest
from doppler.core.plan import make_plan
from doppler.core.problem import Problem
from doppler.curriculum_jobs import JobFamily, draw_job, log_uniform
from doppler.graphs.families import Family, Topology, generate
from doppler.planners.annealing import anneal
from doppler.planners.base import Budget
from doppler.planners.list_schedule import make_list_scheduler
from doppler.policies.build import build_assignment
from doppler.policies.dual import DualPolicy, policy_inputs
from doppler.policies.sampling import SampleMode, Temperature, plan_arrays
from doppler.training.elites import EliteBuffer
from doppler.training.reinforce import Lesson

MAX_OPS = 160
HELD_OUT = (Family.stencil, Family.out_tree, Family.cholesky, Family.qr)
TRAINED_ON = tuple(family for family in Family if family not in HELD_OUT)
NUM_ELITES = 6
SAMPLES = 16
LABEL_TEMPERATURE = Temperature(select=0.4, place=0.4)

Pair = tuple[Problem, Costs]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumConfig:
    """How lessons are drawn.

    Attributes:
        lessons: Lessons per epoch.
        min_ops: Smallest generated graph.
        max_ops: Largest one at the end of the training, at most `MAX_OPS`; at the start it is a
            third of that.
        max_devices: Most devices; at least 2.
        job_share: Share of lessons from sharded tensor programs and PPO jobs, which have shards,
            groups and loops.
        search_calls: Plans that a lesson's search may score for its labels.
        leave_out: Names of graph families and jobs that no lesson is made of, so that what a policy
            does with them is transfer. At least one family and one job are left.

    Raises:
        ConfigError: If a name is none of those that lessons are made of, or none is left.
    """

    lessons: int = 40
    min_ops: int = 16
    max_ops: int = MAX_OPS
    max_devices: int = 12
    job_share: float = 0.4
    search_calls: int = 0
    leave_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = [kind.value for kind in (*TRAINED_ON, *JobFamily)]
        for name in self.leave_out:
            if name not in known:
                raise ConfigError(
                    f"leave_out names lessons, and {name!r} is none; {nearest(name, known)}"
                )
        for label, left in (("graph family", self.families), ("job", self.jobs)):
            if not left:
                raise ConfigError(
                    f"lessons need at least one {label}, and leave_out is {list(self.leave_out)}"
                )

    @property
    def families(self) -> tuple[Family, ...]:
        """Graph families that lessons are made of."""
        return tuple(family for family in TRAINED_ON if family.value not in self.leave_out)

    @property
    def jobs(self) -> tuple[JobFamily, ...]:
        """Jobs that lessons are made of."""
        return tuple(family for family in JobFamily if family.value not in self.leave_out)


def draw_problem(config: CurriculumConfig, fraction: float, rng: np.random.Generator) -> Pair:
    """Returns a random problem and its costs; sizes grow with `fraction` from 0 to 1."""
    num_devices = int(rng.integers(2, config.max_devices + 1))
    heterogeneity = float(rng.choice([0.0, 0.25, 0.5, 0.75]))
    if rng.random() < config.job_share:
        return draw_job(num_devices, heterogeneity, rng, config.jobs)
    largest = config.min_ops + (config.max_ops - config.min_ops) * (1 + 2 * fraction) / 3
    instance = generate(
        Family(rng.choice([family.value for family in config.families])),
        round(log_uniform(config.min_ops, largest, rng)),
        num_devices,
        ccr=log_uniform(0.05, 20.0, rng),
        heterogeneity=heterogeneity,
        seed=int(rng.integers(2**31)),
        speed_spread=float(rng.choice([1.0, 1.0, 1.5, 2.5])),
        topology=Topology(rng.choice([kind.value for kind in Topology])),
    )
    return instance.problem, instance.costs


def make_lesson(
    policy: DualPolicy, pair: Pair, search_calls: int, rng: np.random.Generator
) -> Lesson:
    """Returns a lesson whose elites come from HEFT, the policy's samples and a search from them."""
    problem, costs = pair
    scorer = make_scorer(problem, costs)
    assignment = build_assignment(problem, costs)
    inputs = policy_inputs(assignment, policy.config)
    elites = EliteBuffer(assignment, NUM_ELITES)
    heft = heft_arrays(pair)
    values = scorer.score(*heft)
    elites.add_plans(*heft, values)
    for mode, count in ((SampleMode.greedy, 1), (SampleMode.sample, SAMPLES)):
        rollouts = policy.sample(inputs, count, rng, mode=mode, temperature=LABEL_TEMPERATURE)
        found = scorer.score(*plan_arrays(assignment, rollouts))
        elites.add_episodes(rollouts.orders, rollouts.devices, found)
    if search_calls:
        orders, devices = elites.episodes(elites.elites[:1])
        placements, priorities = assignment.plan_arrays(orders, devices)
        seed = make_plan(
            problem, tuple(placements[0].tolist()), tuple(priorities[0].tolist()), "policy"
        )
        best = anneal(problem, scorer, Budget(search_calls), rng, seeds=(seed,))
        arrays = np.array([best.placement]), np.array([best.priority])
        elites.add_plans(*arrays, scorer.score(*arrays))
    return Lesson(inputs=inputs, evaluate=scorer.score, elites=elites, reference_ns=int(values[0]))


def heft_arrays(pair: Pair) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Returns (placements_BV, priorities_BV) of HEFT with insertion, B = 1."""
    lists = make_list_scheduler(*pair)
    heft = lists.heft()
    return lists.mask.placement(heft.devices_U[None]), heft.priority_V[None]


def greedy_ratios(policy: DualPolicy, pairs: Sequence[Pair]) -> list[float]:
    """Returns value of the greedy episode / value of HEFT with insertion, per problem."""
    ratios = []
    for problem, costs in pairs:
        scorer = make_scorer(problem, costs)
        (reference,) = scorer.score(*heft_arrays((problem, costs)))
        inputs = policy_inputs(build_assignment(problem, costs), policy.config)
        rollouts = policy.sample(inputs, 1, np.random.default_rng(0), mode=SampleMode.greedy)
        (value,) = scorer.score(*plan_arrays(inputs.assignment, rollouts))
        ratios.append(float(value / reference))
    return ratios
