import numpy as np

from doppler.core.runtime import INFEASIBLE_NS
from doppler.policies.build import build_assignment
from doppler.training.elites import EliteBuffer
from doppler.training.symmetry import align, device_classes
from tests.policies.problems import layered, six_ops


def test_equal_devices_are_one_class_and_different_ones_are_not():
    assert device_classes(build_assignment(*six_ops())).tolist() == [0, 0]
    equal = build_assignment(*layered(0, equal_devices=True))
    assert device_classes(equal).tolist() == [0, 0, 0]
    assert device_classes(build_assignment(*layered(0))).tolist() == [0, 1, 2]


def test_alignment_renames_within_classes_only():
    devices, reference = np.array([0, 0, 1, 2]), np.array([1, 1, 0, 2])
    assert align(devices, reference, np.array([0, 0, 0])).tolist() == [1, 1, 0, 2]
    assert align(devices, reference, np.array([0, 1, 2])).tolist() == [0, 0, 1, 2]
    assert align(devices, np.array([2, 2, 0, 1]), np.array([0, 0, 2])).tolist() == [1, 1, 0, 2]


def test_buffer_keeps_the_best_distinct_placements_up_to_names():
    assignment = build_assignment(*six_ops())
    buffer = EliteBuffer(assignment, capacity=2)
    order = np.arange(6)
    rows = np.array(
        [[0, 1, 0, 1, 0, 0], [1, 0, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0], [0, 1, 1, 0, 1, 1]]
    )
    values = np.array([50, 40, 60, INFEASIBLE_NS])
    buffer.add_episodes(np.tile(order, (4, 1)), rows, values)
    assert [elite.value_ns for elite in buffer.elites] == [40, 60]
    assert buffer.best_ns == 40
    buffer.add_episodes(order[None], rows[3:], np.array([45]))
    assert [elite.value_ns for elite in buffer.elites] == [40, 45]
    orders, devices = buffer.episodes(buffer.elites)
    assert devices[0].tolist() == [1, 0, 1, 0, 1, 1]
    assert orders[0].tolist() == order.tolist()


def test_draws_prefer_better_plans():
    buffer = EliteBuffer(build_assignment(*layered(0)), capacity=4)
    size = buffer._assignment.num_ops
    orders = np.tile(np.argsort(np.arange(size)), (2, 1))
    devices = np.stack([np.zeros(size, dtype=np.int64), np.ones(size, dtype=np.int64)])
    buffer.add_episodes(orders, devices, np.array([1000, 1010]))
    drawn = buffer.draw(3000, np.random.default_rng(0))
    share = sum(elite.value_ns == 1000 for elite in drawn) / 3000
    assert abs(share - np.e / (1 + np.e)) < 0.03  # 1 % worse: e times less likely
    assert EliteBuffer(build_assignment(*layered(0)), 4).draw(3, np.random.default_rng(0)) == []
