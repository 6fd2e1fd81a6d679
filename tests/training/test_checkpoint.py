import json

import numpy as np
import pytest
import torch

from doppler.core.errors import FormatError
from doppler.policies.build import build_assignment
from doppler.policies.bundle import DOCUMENT
from doppler.training.checkpoint import load_checkpoint, save_checkpoint
from doppler.training.config import ImitationConfig, ReinforceConfig, Stage
from doppler.training.imitation import imitate
from doppler.training.reinforce import reinforce
from tests.policies.problems import layered, six_ops
from tests.training.test_training import make_evaluate, make_learner


def run(learner, evaluate, on_record=None):
    reinforce(
        learner,
        evaluate,
        ReinforceConfig(batch=8, elite_batch=2),
        8 * 6,
        stage=Stage.simulation,
        reference_ns=400,
        on_record=on_record,
    )


def test_resuming_from_a_checkpoint_is_exact(tmp_path):
    pair = layered(2, groups=1)
    evaluate = make_evaluate(pair)
    straight, records = make_learner(pair), []
    imitate(straight, ImitationConfig(num_updates=2))

    def save(record):
        records.append(record)
        if record.update == 2:
            save_checkpoint(straight, tmp_path / "c")

    run(straight, evaluate, save)
    resumed = load_checkpoint(tmp_path / "c", build_assignment(*pair), capacity=8)
    again = []
    run(resumed, evaluate, again.append)
    assert again == records[3:]
    for name, value in straight.policy.state_dict().items():
        assert torch.equal(resumed.policy.state_dict()[name], value), name
    assert [e.value_ns for e in resumed.elites.elites] == [
        e.value_ns for e in straight.elites.elites
    ]
    assert (resumed.rng.integers(0, 2**60, 4) == straight.rng.integers(0, 2**60, 4)).all()


@pytest.fixture
def stored(tmp_path):
    pair = six_ops()
    learner = make_learner(pair)
    run(learner, make_evaluate(pair))
    save_checkpoint(learner, tmp_path / "c")
    return tmp_path / "c"


def load(directory, pair=None):
    return load_checkpoint(directory, build_assignment(*(pair or six_ops())), capacity=8)


def test_a_checkpoint_of_another_graph_or_cluster_is_refused(stored):
    with pytest.raises(FormatError, match="was made for graph"):
        load(stored, layered(0))
    with pytest.raises(FormatError, match="was made for cluster"):
        load(stored, six_ops(num_streams=2))


def test_an_absent_checkpoint_is_refused(tmp_path):
    with pytest.raises(FormatError, match=r"a doppler\.checkpoint is a directory with"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["progress"].update(stage="IV"), "the progress in .* is damaged"),
        (lambda c: c["progress"].update(more=1), "the progress in .* is damaged"),
        (lambda c: c.update(rng={"bit_generator": "MT19937"}), "generator's state in .* damaged"),
        (lambda c: c["elites"].append(5), "elites.order of checkpoint"),
        (lambda c: c.update(elites=5), "are values in ns, and they are 5"),
        (lambda c: c.update(elites=["x"]), "are values in ns"),
        (lambda c: c.update(learning_rate="fast"), "learning_rate of .* not 'fast'"),
        (lambda c: c.update(learning_rate=float("inf")), "learning_rate of .* not inf"),
        (lambda c: c.pop("rng"), "content keys"),
    ],
)
def test_damaged_checkpoints_are_refused(stored, change, message):
    document = json.loads((stored / DOCUMENT).read_text())
    change(document["content"])
    (stored / DOCUMENT).write_text(json.dumps(document))
    with pytest.raises(FormatError, match=message):
        load(stored)


@pytest.mark.parametrize(
    ("tensor", "value", "message"),
    [
        ("order", 0, "elites.order of checkpoint .* holds every op once"),
        ("devices", 7, r"elites.devices of checkpoint .* are 0 to 1, and they are \d to 7"),
        ("devices", -1, "and they are -1 to"),
    ],
)
def test_elites_that_are_no_episodes_are_refused(stored, tensor, value, message):
    """Compiled code reads them without looking at bounds."""
    learner = load(stored)
    elite = learner.elites.elites[0]
    getattr(elite, tensor)[:2] = value
    save_checkpoint(learner, stored)
    with pytest.raises(FormatError, match=message):
        load(stored)


def test_missing_moments_of_the_optimiser_are_refused(stored):
    learner = load(stored)
    parameter = learner.policy.select.prior.base
    learner.optimizer.state[parameter]["exp_avg"] = torch.zeros(3)
    save_checkpoint(learner, stored)
    with pytest.raises(FormatError, match=r"optimiser's state of 'select\.prior\.base'"):
        load(stored)
    assert np.isfinite(learner.learning_rate)
