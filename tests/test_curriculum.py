import numpy as np
import pytest

from doppler.core.errors import ConfigError
from doppler.curriculum import (
    HELD_OUT,
    MAX_OPS,
    TRAINED_ON,
    CurriculumConfig,
    draw_problem,
    greedy_ratios,
    heft_arrays,
    make_lesson,
)
from doppler.curriculum_jobs import JobFamily
from doppler.graphs.families import Family
from doppler.policies.config import PolicyConfig
from doppler.policies.dual import DualPolicy
from simulator.scorer import CompiledScorer

TINY = PolicyConfig(hidden=8, rank=4, rounds=1, head_hidden=8, summary=2)


def draw(seed, fraction=1.0):
    return draw_problem(CurriculumConfig(), fraction, np.random.default_rng(seed))


def test_held_out_families_and_sizes_are_not_drawn():
    assert set(HELD_OUT) | set(TRAINED_ON) == set(Family)
    assert not set(HELD_OUT) & set(TRAINED_ON)
    names = [draw(seed)[0].graph.name for seed in range(80)]
    for family in HELD_OUT:
        assert not any(name.startswith(f"{family.value}_") for name in names)
    for family in TRAINED_ON:
        assert any(name.startswith(f"{family.value}_") for name in names)
    # The nearest tiled factorisation may be a little larger than what was asked for.
    generated = [draw(seed)[0].graph for seed in range(80)]
    sizes = [graph.num_ops for graph in generated if "_ccr" in graph.name]
    assert len(sizes) > 40
    assert max(sizes) <= 1.25 * MAX_OPS


@pytest.mark.parametrize("job", JobFamily)
def test_a_job_that_is_left_out_is_not_drawn_and_all_others_are(job):
    config = CurriculumConfig(leave_out=(job.value, "lu"), job_share=0.5)
    names = [draw_problem(config, 1.0, np.random.default_rng(s))[0].graph.name for s in range(120)]
    for other in JobFamily:
        is_drawn = any(name.startswith(other.value) for name in names)
        assert is_drawn == (other is not job)
    for family in TRAINED_ON:
        is_drawn = any(name.startswith(f"{family.value}_") for name in names)
        assert is_drawn == (family is not Family.lu)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("lama",), "did you mean 'llama'"),
        (tuple(job.value for job in JobFamily), "at least one job"),
        (tuple(family.value for family in TRAINED_ON), "at least one graph family"),
        (("stencil",), "'stencil' is none"),
    ],
)
def test_lessons_that_cannot_be_left_out_are_refused(names, said):
    with pytest.raises(ConfigError, match=said):
        CurriculumConfig(leave_out=names)


def test_equal_seeds_draw_equal_problems_and_sizes_grow():
    assert draw(3)[0].graph.digest == draw(3)[0].graph.digest
    assert draw(3)[1] == draw(3)[1]
    means = [
        np.mean([draw(seed, fraction)[0].graph.num_ops for seed in range(60)])
        for fraction in (0.0, 1.0)
    ]
    assert means[0] < means[1]


def test_a_lesson_begins_with_plans_at_least_as_good_as_heft():
    policy = DualPolicy(TINY, seed=0)
    pair = draw(11)
    lesson = make_lesson(policy, pair, 40, np.random.default_rng(0))
    (heft,) = CompiledScorer(*pair).score(*heft_arrays(pair))
    assert lesson.reference_ns == heft
    assert lesson.elites.best_ns <= heft
    (ratio,) = greedy_ratios(policy, [pair])
    assert ratio * heft == pytest.approx(round(ratio * heft))
    assert lesson.elites.best_ns <= round(ratio * heft)
