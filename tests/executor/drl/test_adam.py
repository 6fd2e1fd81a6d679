"""Adam on segments: against torch, by hand, and as exportable state."""

import numpy as np
import pytest
import torch

from doppler.core.errors import ExecutionError
from executor.drl.adam import EPSILON, AdamSegment, clip_scale


def test_clip_scale_by_hand():
    assert clip_scale([9.0, 16.0], 10.0) == 1.0  # norm 5
    assert clip_scale([9.0, 16.0], 1.0) == pytest.approx(0.2, rel=1e-6)


def test_first_step_moves_by_the_learning_rate_against_the_sign():
    segment = AdamSegment(np.zeros(2, np.float32))
    # m / (1 - b1) = g and v / (1 - b2) = g^2, so the step is lr g / (|g| + eps).
    step = segment.step(np.array([4.0, -2.0], np.float32), 1.0, 0.1)
    np.testing.assert_allclose(step, [-0.1, 0.1], rtol=1e-4)


def test_segments_together_follow_torch():
    random = np.random.default_rng(0)
    start = random.normal(size=100).astype(np.float32)
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.Adam([parameter], lr=0.01, eps=EPSILON)
    segments = [AdamSegment(start[:30]), AdamSegment(start[30:])]
    for _ in range(20):
        gradient = random.normal(size=100).astype(np.float32)
        parameter.grad = torch.from_numpy(gradient.copy())
        torch.nn.utils.clip_grad_norm_([parameter], 1.0)
        optimizer.step()
        pieces = [gradient[:30], gradient[30:]]
        scale = clip_scale([float(piece.astype(float) @ piece) for piece in pieces], 1.0)
        for segment, piece in zip(segments, pieces, strict=True):
            segment.step(piece, scale, 0.01)
    together = np.concatenate([segment.parameters for segment in segments])
    np.testing.assert_allclose(together, parameter.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_an_imported_state_goes_on_bit_for_bit():
    random = np.random.default_rng(0)
    gradients = random.normal(size=(6, 48)).astype(np.float32)
    stays = AdamSegment(np.ones(48, np.float32))
    for gradient in gradients[:3]:
        stays.step(gradient, 1.0, 0.01)
    moved = AdamSegment(np.zeros(48, np.float32))
    moved.import_state(stays.export_state())
    for gradient in gradients[3:]:
        stays.step(gradient, 1.0, 0.01)
        moved.step(gradient, 1.0, 0.01)
    assert stays.parameters.tobytes() == moved.parameters.tobytes()


@pytest.mark.parametrize("damage", [{"m": np.zeros(3, np.float32)}, {"steps": None}])
def test_a_foreign_state_is_refused(damage):
    segment = AdamSegment(np.zeros(4, np.float32))
    state = {k: v for k, v in (segment.export_state() | damage).items() if v is not None}
    with pytest.raises(ExecutionError, match=r"optimizer state .* must be"):
        segment.import_state(state)
