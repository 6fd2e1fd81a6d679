"""Grouping of packages, the printed metric, layouts of batches."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler.core.errors import ConfigError, ExecutionError
from executor.experience.packages import (
    BatchLayout,
    Channel,
    Dispenser,
    Package,
    choose_batch,
    group_packages,
    top_mov,
)

STATE = Package("state", "float32", (60,))
ACTION = Package("action", "float32", (8,))
REWARD = Package("reward", "float32")
DONE = Package("done", "uint8")
PICTURE = Package("picture", "float32", (3, 8, 8))


@st.composite
def records(draw):
    kinds = st.tuples(
        st.sampled_from(["float32", "uint8", "int64"]),
        st.sampled_from([(), (1,), (5,), (60,), (2, 3), (4, 3)]),
    )
    rows = draw(st.lists(kinds, min_size=1, max_size=5))
    return [Package(f"p{i}", dtype, shape) for i, (dtype, shape) in enumerate(rows)]


def partitions(items):
    """Every way to part a list into groups."""
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for index, group in enumerate(rest):
            yield [*rest[:index], [items[0], *group], *rest[index + 1 :]]


@given(packages=records())
def test_no_compatible_grouping_has_a_better_metric_or_fewer_channels(packages):
    found = group_packages(packages)
    assert sorted(p.name for c in found for p in c.packages) == sorted(p.name for p in packages)
    for groups in partitions(packages):
        if any(len({p.compatibility for p in group}) > 1 for group in groups):
            continue
        channels = [Channel(tuple(group)) for group in groups]
        assert len(found) <= len(channels)
        assert top_mov(found) >= top_mov(channels)


def test_metric_by_hand():
    """Ant: 240 + 32 + 4 bytes in three packages beside 1 byte: min(276 / 6, 1 / 2)."""
    channels = group_packages([STATE, ACTION, REWARD, DONE])
    assert [c.num_bytes for c in channels] == [276, 1]
    assert top_mov(channels) == Fraction(1, 2)
    assert top_mov(channels[:1]) == Fraction(276, 3)
    assert len(group_packages([STATE, PICTURE])) == 2


@given(packages=records(), batch=st.integers(1, 9))
def test_fields_lie_apart_and_channels_together(packages, batch):
    layout = BatchLayout(group_packages(packages), batch)
    memory = np.zeros(64 + layout.size_bytes, np.uint8)
    views = layout.views(memory, 64)
    for index, (package, view) in enumerate(zip(layout.packages, views, strict=True)):
        assert view.shape == (batch, *package.shape)
        assert view.dtype == package.dtype
        assert view.ctypes.data % view.itemsize == 0
        view.view(np.uint8)[...] += np.uint8(index + 1)
    used = np.bincount(memory[64:], minlength=len(views) + 1)[1:]
    assert used.tolist() == [package.num_bytes * batch for package in layout.packages]
    assert not memory[:64].any()


def test_batch_is_chosen_by_its_rate():
    rates = {8: 1.0, 16: 3.0, 32: 3.0}
    assert choose_batch([32, 8, 16, 8], rates.__getitem__) == 16
    assert choose_batch(rates, rates.__getitem__, tolerance=0.6) == 16
    assert choose_batch(rates, rates.__getitem__, tolerance=0.7) == 8
    with pytest.raises(ConfigError, match="at least one candidate"):
        choose_batch([], rates.__getitem__)


def test_wrong_experience_is_refused():
    dispenser = Dispenser(BatchLayout(group_packages([ACTION, DONE]), 4))
    good = {"action": np.zeros((3, 8), np.float32), "done": np.zeros(3, np.uint8)}
    assert dispenser.cut(good)[1] == 3
    with pytest.raises(ExecutionError, match=r"\['done'\] are missing"):
        dispenser.cut({"action": good["action"]})
    with pytest.raises(ExecutionError, match="'done' is uint8 of shape"):
        dispenser.cut({**good, "done": np.zeros(2, np.uint8)})
    with pytest.raises(ExecutionError, match="it got float64"):
        dispenser.cut({**good, "action": np.zeros((3, 8))})
    with pytest.raises(ConfigError, match="unique names"):
        group_packages([DONE, DONE])
    with pytest.raises(ConfigError, match="at least one record"):
        BatchLayout(group_packages([DONE]), 0)
