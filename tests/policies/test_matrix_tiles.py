import numba
import numpy as np
import pytest
import torch

from doppler.policies.config import PolicyConfig, PolicyKind
from doppler.policies.dual import policy_inputs
from doppler.policies.matrix_tiles import ROWS, multiply
from tests.policies.conformance import check_log_probs
from tests.policies.problems import assignment_of, layered
from tests.policies.test_encode_kernel import randomised


@numba.njit
def product(x, weights, out):
    multiply(x, weights, out)


@pytest.mark.parametrize("width", [1, 15, 16, 17, 32, 40, 48, 63, 64, 80, 97, 144])
@pytest.mark.parametrize("inner", [0, 1, 3, 28])
def test_products_are_added_for_every_width(width, inner):
    rng = np.random.default_rng(width)
    x = rng.normal(size=(ROWS, inner)).astype(np.float32)
    weights = rng.normal(size=(inner, width)).astype(np.float32)
    # What lies behind `out` stays.
    room = rng.normal(size=(ROWS + 1, width)).astype(np.float32)
    before = room.copy()
    product(x, weights, room[:ROWS])
    expected = before[:ROWS].astype(np.float64) + x.astype(np.float64) @ weights
    assert room[:ROWS] == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert (room[ROWS] == before[ROWS]).all()


@pytest.mark.parametrize("wrong", ["doubles", "columns of a wider matrix"])
def test_other_layouts_are_refused(wrong):
    x, out = np.zeros((ROWS, 4), np.float32), np.zeros((ROWS, 16), np.float32)
    doubles = np.zeros((4, 16))
    weights = doubles if wrong == "doubles" else doubles.astype(np.float32).repeat(2, 1)[:, ::2]
    with pytest.raises(numba.TypingError, match="C-contiguous float32 matrices"):
        product(x, weights, out)


@pytest.mark.parametrize("kind", list(PolicyKind))
@pytest.mark.parametrize("num_devices", [ROWS - 1, ROWS, ROWS + 1, 2 * ROWS + 3])
def test_logits_are_the_networks_for_any_number_of_devices(kind, num_devices):
    policy = randomised(PolicyConfig(kind=kind, hidden=8, rank=2, rounds=1, head_hidden=20))
    inputs = policy_inputs(assignment_of(layered(1, num_devices=num_devices)), policy.config)
    with torch.no_grad():
        check_log_probs(policy, inputs, policy.sample(inputs, 3, np.random.default_rng(0)))
