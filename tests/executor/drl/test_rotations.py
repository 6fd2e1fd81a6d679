"""Quaternions: hand-worked turns, and the laws of rotations."""

import numpy as np
import pytest

from executor.drl.rotations import angle, random_rotation, relative, to_frame

HALF = np.sqrt(0.5)
QUARTER_ABOUT_Z = np.array([[HALF, 0.0, 0.0, HALF]])
NOTHING = np.array([[1.0, 0.0, 0.0, 0.0]])


@pytest.fixture
def rotations():
    random = np.random.default_rng(0)
    return [np.stack([random_rotation(random) for _ in range(50)]) for _ in range(2)]


def test_a_body_turned_to_the_left_sees_the_world_turned_to_the_right():
    seen = to_frame(QUARTER_ABOUT_Z, np.array([[1.0, 0.0, 2.0]]))
    np.testing.assert_allclose(seen, [[0.0, -1.0, 2.0]], atol=1e-12)


def test_a_quarter_turn_is_half_pi_and_from_itself_nothing():
    np.testing.assert_allclose(angle(relative(QUARTER_ABOUT_Z, NOTHING)), [np.pi / 2])
    np.testing.assert_allclose(angle(relative(QUARTER_ABOUT_Z, QUARTER_ABOUT_Z)), [0.0], atol=1e-9)


def test_q_and_minus_q_are_one_rotation(rotations):
    first, second = rotations
    np.testing.assert_allclose(angle(relative(-first, second)), angle(relative(first, second)))
    vector = np.random.default_rng(1).normal(size=(50, 3))
    np.testing.assert_allclose(to_frame(-first, vector), to_frame(first, vector))


def test_turning_keeps_lengths_and_the_way_there_is_as_long_as_back(rotations):
    first, second = rotations
    vector = np.random.default_rng(2).normal(size=(50, 3))
    lengths = np.linalg.norm(to_frame(first, vector), axis=1)
    np.testing.assert_allclose(lengths, np.linalg.norm(vector, axis=1))
    np.testing.assert_allclose(angle(relative(first, second)), angle(relative(second, first)))
    np.testing.assert_allclose(np.linalg.norm(relative(first, second), axis=1), 1.0)
