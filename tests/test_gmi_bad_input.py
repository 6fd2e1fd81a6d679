"""What users may not say to a set of GMIs: each is refused at once, in one sentence."""

import re

import gmi_classes
import numpy as np
import pytest
from test_gmi import cluster_of, manager_of

from doppler.core.cluster import Device
from doppler.core.errors import ConfigError
from doppler.gmi import AUTO, CollectiveKernel, GMIManager, Package, WhenFull
from doppler.gmi_checks import composition
from doppler.graphs.collectives import compose

FIELDS = [Package("x", "float32")]


@pytest.fixture
def manager():
    found = manager_of("agent", "trainer")
    for device, role in enumerate(["agent", "trainer"]):
        found.add_gmi(gmi_classes.Placed, role, device)
    return found


def refused(told):
    """Expects one sentence that holds all of the given parts."""
    return pytest.raises(ConfigError, match="(?s)" + ".*".join(map(re.escape, told)))


@pytest.mark.parametrize("schedule", [None, AUTO])
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"num_elements": -5}, ["1 or more", "'sum'", "-5"]),
        ({"num_elements": 0}, ["1 or more", "'sum'", "0"]),
        ({"num_elements": 2.5}, ["whole number", "'sum'", "2.5"]),
        ({"dtype": "floaty"}, ["float32", "'sum'", "'floaty'"]),
        ({"dtype": None}, ["float32", "'sum'", "None"]),
        ({"dtype": "object"}, ["without objects", "'sum'", "'object'"]),
        ({"dtype": "bool"}, ["adds numbers", "'sum'", "'bool'"]),
        ({"kernel": "glo"}, ["kernel of collective 'sum'", "'glo'", "'gloo'"]),
        ({"group": "trainer"}, ["list of GMI ids", "'trainer'"]),
        ({"group": 0}, ["list of GMI ids", "0"]),
    ],
)
def test_an_all_reduce_that_is_none(manager, schedule, settings, told):
    given = {"group": (0, 1), "num_elements": 8} | settings
    with refused(told):
        manager.add_collective("sum", schedule=schedule, **given)
    assert not manager.communication.links
    assert not manager.choices


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        ("rign", ["'sum'", "'auto'", "'rign'", "direct, ring, tree"]),
        ("hybrid(7)", ["'sum'", "0 to 2 rings", "7"]),
        (3, ["'sum'", "'auto'", "is 3"]),
    ],
)
def test_a_composition_that_is_none(manager, schedule, told):
    with refused(told):
        manager.add_collective("sum", (0, 1), 8, schedule=schedule)


NAMES = ["direct", "ring", "tree", "through_host", "local_leader", "multi_ring", "hybrid(1)"]


@pytest.mark.parametrize("name", NAMES)
def test_a_composition_is_given_by_its_name(manager, name):
    manager.add_collective("sum", (0, 1), 8, schedule=name)
    (link,) = manager.communication.links
    assert link.layout.schedule == compose(name, [[0, 1]])


def test_members_of_one_processor_are_a_group():
    devices = [Device(name=f"d{i}", kind="cpu", parent=f"p{i % 2}", cores=(0,)) for i in range(4)]
    found = composition("local_leader", devices, "collective 'sum'")
    assert found == compose("local_leader", [[0, 2], [1, 3]])


def test_kernels_and_reactions_are_given_by_their_names(manager):
    manager.add_collective("sum", (0, 1), 8, kernel="gloo")
    manager.add_channel("c", [0], [1], FIELDS, batch=np.int64(2), when_full="drop_new")
    collective, channel = manager.communication.links
    assert collective.kernel is CollectiveKernel.gloo
    assert channel.when_full is WhenFull.drop_new
    assert "full: drop_new" in manager.describe()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"batch": "fast"}, ["'auto'", "channel 'c'", "'fast'"]),
        ({"batch": 0}, ["1 or more", "channel 'c'", "0"]),
        ({"batch": 2.5}, ["whole number", "channel 'c'", "2.5"]),
        ({"num_slots": 1}, ["2 or more", "channel 'c'", "1"]),
        ({"num_slots": "4"}, ["whole number", "channel 'c'", "'4'"]),
        ({"batch": AUTO, "num_sent": 0}, ["call of send", "1 or more", "channel 'c'", "0"]),
        ({"batch": AUTO, "consumers": [0]}, ["one side", "GMI 0", "'c'"]),
        ({"when_full": "drop"}, ["when_full of channel 'c'", "'drop'", "'drop_new'"]),
        ({"packages": [("x", "float32")]}, ["`Package`", "('x', 'float32')"]),
    ],
)
def test_a_channel_that_is_none(manager, settings, told):
    given = {"producers": [0], "consumers": [1], "packages": FIELDS, "batch": 4} | settings
    with refused(told):
        manager.add_channel("c", **given)
    assert not manager.communication.links
    assert not manager.choices


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("x", "object", (3,)), ["without objects", "'x'", "'object'"]),
        (("x", "floaty"), ["float32", "'x'", "'floaty'"]),
        (("x", "S"), ["fixed size", "'x'", "'S'"]),
        (("x", "float32", (0,)), ["1 or more", "'x'", "0"]),
        (("x", "float32", 3), ["tuple of sizes", "'x'", "3"]),
    ],
)
def test_a_package_that_is_none(arguments, told):
    with refused(told):
        Package(*arguments)


@pytest.mark.parametrize(
    ("readers", "num_bytes", "told"),
    [
        ([1], -1, ["1 or more", "'w'", "-1"]),
        ([1], 0, ["1 or more", "'w'", "0"]),
        ([1, 0], 8, ["other GMIs", "GMI 0", "'w'"]),
    ],
)
def test_weights_that_are_none(manager, readers, num_bytes, told):
    with refused(told):
        manager.add_weights("w", 0, readers, num_bytes)


@pytest.mark.parametrize("device", [-1, 2, 1.5, None])
def test_a_device_that_is_none(device):
    with refused(["name or a position from 0 to 1", "'cores'", repr(device)]):
        manager_of("a", "b").add_gmi(gmi_classes.Placed, "a", device)


def test_numpys_integers_are_positions():
    manager = manager_of("a", "b")
    manager.add_gmi(gmi_classes.Placed, "a", np.int64(1))
    assert manager.gmis[0].device.name == "core1"


def test_a_class_is_given_as_such():
    with refused(["given by its class", "'Placed'"]):
        manager_of("a").add_gmi("Placed", "a", 0)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        *(
            ({"deadline_s": value}, ["deadline_s", "above 0 seconds", repr(value)])
            for value in (0, -1.0, "a", None, float("inf"), float("nan"))
        ),
        ({"seed": -1}, ["seeds", "0 or more", "-1"]),
        ({"max_recoveries": -1}, ["recoveries", "0 or more", "-1"]),
    ],
)
def test_a_set_that_is_none(settings, told):
    with refused(told):
        GMIManager(cluster=cluster_of(1), **settings)
