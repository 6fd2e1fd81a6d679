"""GMIs that go on after a failure: from which checkpoints, with which links, how often."""

import gmi_classes
import numpy as np
import pytest
from test_gmi import cluster_of, expected_total, manager_of, no_process_left, summers

from doppler.core.errors import ConfigError, FormatError, WorkerDiedError, WorkerHungError
from doppler.gmi import GMIManager, Package, Saved
from doppler.gmi_checkpoints import CheckpointStore, read_history, resume_points
from doppler.gmi_recovery import links_without, resumed
from doppler.graphs.collectives import direct, hybrid, ring
from executor.collectives.shared import AllReduceLayout
from executor.experience.flow import WhenFull
from executor.experience.packages import BatchLayout, group_packages
from executor.experience.ring import RingLayout
from executor.gmi.communication import Channel, Collective, GMISpec, Weights

pytestmark = pytest.mark.timeout(120)
LAST_STEPS = (3, 4)
"""Where GMIs go on after a failure in step 4: a last checkpoint may still have been on its way."""


def specs(*roles):
    devices = cluster_of(len(roles)).devices
    return tuple(
        GMISpec(gmi_id=i, role=role, device=device, source="m", class_name="C")
        for i, (role, device) in enumerate(zip(roles, devices, strict=True))
    )


def collective(*members, name="gradient", schedule=None):
    layout = AllReduceLayout(schedule=schedule or direct(len(members)), num_elements=8)
    return Collective(name=name, members=members, layout=layout)


def channel(producers, consumers):
    batch = BatchLayout(group_packages([Package("x", "float32")]), 4)
    return Channel(
        name="experience",
        producers=producers,
        consumers=consumers,
        ring=RingLayout(batch),
        when_full=WhenFull.block,
    )


def saved(*steps):
    return [Saved(step, {"at": np.array([step])}) for step in steps]


# -- where GMIs go on ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "leaving", "steps"),
    [
        # Members of a collective go on together; the agents (2 and 3) each from their own newest.
        ({0: saved(4, 5), 1: saved(3, 4), 2: saved(7), 3: saved(2)}, (), {0: 4, 1: 4, 2: 7, 3: 2}),
        # One that leaves holds nobody back.
        ({0: saved(4, 5), 1: saved(3, 4)}, (1,), {0: 5, 1: 5}),
        # Only the first one saves, for all; it may even be the one that leaves.
        ({0: saved(6)}, (0,), {0: 6, 1: 6}),
        ({2: saved(1)}, (), {2: 1}),
        ({}, (), {}),
    ],
)
def test_members_of_a_collective_go_on_from_a_common_step(history, leaving, steps):
    gmis = specs("trainer", "trainer", "agent", "agent")
    points = resume_points(gmis, [collective(0, 1)], history, leaving)
    assert {gmi_id: point.step for gmi_id, point in points.items()} == steps
    for gmi_id, point in points.items():
        if gmi_id in history and gmi_id not in leaving:
            assert any(point is own for own in history[gmi_id])


def test_collectives_that_share_members_tie_all_of_them_but_states_stay_within_a_role():
    gmis = specs("trainer", "trainer", "critic")
    links = [collective(0, 1), collective(1, 2, name="other")]
    points = resume_points(gmis, links, {0: saved(5), 1: saved(4, 5)})
    assert {gmi_id: point.step for gmi_id, point in points.items()} == {0: 5, 1: 5}
    points = resume_points(gmis, links, {0: saved(5), 1: saved(4, 5), 2: saved(4)})
    assert {gmi_id: point.step for gmi_id, point in points.items()} == {0: 4, 1: 4, 2: 4}


def test_who_is_left_is_counted_anew():
    gmis = specs("agent", "trainer", "agent")
    left = resumed(gmis, {2: saved(3)[0]}, leaving=(1,))
    assert [(g.gmi_id, g.device.name, g.first_step) for g in left] == [
        (0, "core0", 0),
        (1, "core2", 3),
    ]
    assert left[0].state is None


# -- what is left of links -----------------------------------------------------------------------


def test_links_are_planned_for_who_is_left():
    links = [
        collective(0, 2, 3, schedule=ring(3)),
        collective(1, name="alone"),
        channel((2, 1), (0, 3)),
        Weights(name="policy", publisher=0, readers=(1, 2), num_bytes=8),
    ]
    left = links_without(links, 4, leaving=(1,))
    assert [link.name for link in left] == ["gradient", "experience", "policy"]
    assert left[0].members == (0, 1, 2)
    assert left[0].layout == links[0].layout
    assert (left[1].producers, left[1].consumers) == ((1,), (0, 2))
    assert left[2].readers == (1,)
    fewer = links_without(links[:1], 4, leaving=(2, 1))
    assert fewer[0].members == (0, 1)
    assert fewer[0].layout.schedule == ring(2)
    assert links_without(links, 4, leaving=()) == links


def test_a_composition_that_fewer_members_cannot_have_becomes_direct():
    link = collective(0, 1, 2, 3, schedule=hybrid([[0, 1, 2, 3]], 4))
    (left,) = links_without([link], 4, leaving=(2,))
    assert left.layout.schedule == direct(3)


@pytest.mark.parametrize(
    ("link", "leaving"),
    [
        (channel((1, 2), (0,)), (0,)),
        (channel((1, 2), (0,)), (1, 2)),
        (Weights(name="experience", publisher=0, readers=(1,), num_bytes=8), (0,)),
    ],
)
def test_nobody_is_left_waiting_for_one_that_is_gone(link, leaving):
    with pytest.raises(ConfigError, match="'experience' needs it"):
        links_without([link], 3, leaving)


# -- checkpoints in a folder ---------------------------------------------------------------------


def test_the_last_two_checkpoints_lie_in_the_folder_and_come_back(tmp_path):
    trainer, agent = specs("trainer", "agent")
    store = CheckpointStore(tmp_path / "new")
    state = {"a/b": np.arange(6).reshape(2, 3).T, "zero": np.float32(3), "none": np.zeros((0, 2))}
    for step in range(4):
        store.put(trainer, Saved(step, state))
    store.put(agent, Saved(9, {}))
    history = read_history(tmp_path / "new", (trainer, agent))
    assert {g: [s.step for s in kept] for g, kept in history.items()} == {0: [2, 3], 1: [9]}
    for key, value in state.items():
        assert np.array_equal(history[0][1].state[key], value)
        assert history[0][1].state[key].dtype == np.asarray(value).dtype
    with pytest.raises(FormatError, match=r"is of class 'C' in role 'trainer', and GMI 0 .*agent"):
        read_history(tmp_path / "new", specs("agent"))
    left = resumed((trainer, agent), {1: Saved(9, {})}, leaving=(0,))
    store.start_from(left)  # the agent is GMI 0 now
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["gmi0_9.safetensors"]
    (tmp_path / "new" / "gmi0_10.safetensors").write_bytes(b"half")
    with pytest.raises(FormatError, match=r"gmi0_10.* cannot be read"):
        read_history(tmp_path / "new", left)


# -- for real ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["killed", "silent"])
def test_all_go_on_from_their_checkpoints_when_one_was_started_again(how):
    manager = summers(3, deadline_s=1.0, fails=1, at=4, how=how)
    manager.on_failure = "restart"
    assert list(manager.run(10, 0)) == [expected_total(3, 10)] * 3
    (recovery,) = manager.recoveries
    assert recovery.failed == ("GMI 1 (role 'trainer', device 'core1')",)
    assert recovery.failed[0] in recovery.error
    assert recovery.steps["trainer"] in LAST_STEPS
    assert recovery.num_gmis == 3
    assert manager.failed == ()
    assert no_process_left()
    manager.gmis = [spec for spec in manager.gmis if not spec.settings.clear()]
    assert list(manager.run(3, 0)) == [expected_total(3, 3)] * 3  # from the beginning
    assert manager.recoveries == []


def test_who_is_left_goes_on_without_the_one_that_failed():
    manager = summers(3, schedule=ring(3), fails=1, at=4, how="killed")
    manager.on_failure = "drop"
    steps = []
    results = manager.run(10, 0, on_report=lambda gmi_id, values: steps.append(values["step"]))
    step = manager.recoveries[0].steps["trainer"]
    assert step in LAST_STEPS
    before = np.array(expected_total(3, step))
    after = np.array(expected_total(2, 10)) - expected_total(2, step)
    assert list(results) == [(before + after).tolist()] * 2
    assert [spec.device.name for spec in manager.gmis] == ["core0", "core2"]
    assert manager.communication.links[0].layout.schedule == ring(2)
    assert steps.count(9) == 2
    assert no_process_left()


def test_a_failure_that_comes_again_ends_the_run_after_some_recoveries():
    manager = summers(2, fails=1, at=4, how="killed", failures=9)
    manager.on_failure, manager.max_recoveries = "restart", 2
    with pytest.raises(WorkerDiedError, match="GMI 1"):
        manager.run(10, 0)
    assert len(manager.recoveries) == 2
    assert manager.failed == (1,)
    assert no_process_left()


def test_the_only_consumer_of_a_channel_cannot_be_dropped():
    manager = manager_of("trainer", "agent", deadline_s=0.5)
    manager.on_failure = "drop"
    trainer = manager.add_gmi(gmi_classes.Waiter, "trainer", 0)
    agent = manager.add_gmi(gmi_classes.Sleeper, "agent", 1)
    manager.add_channel("experience", [agent], [trainer], [Package("number", "int64")], batch=4)
    with pytest.raises(WorkerHungError, match="none came from GMI 1") as caught:
        manager.run(1, 1)
    assert "'experience' needs it" in caught.value.__notes__[0]
    assert manager.recoveries == []


def test_another_process_goes_on_from_the_folder(tmp_path):
    manager = summers(2, fails=1, at=4, how="killed")
    manager.checkpoint_dir = tmp_path
    with pytest.raises(WorkerDiedError):
        manager.run(10, 0)
    again = summers(2)
    again.checkpoint_dir = tmp_path
    with pytest.raises(ConfigError, match=r"has 'gmi0_\d.safetensors': call resume_from"):
        again.run(10, 0)
    again.resume_from(tmp_path)
    first, second = (spec.first_step for spec in again.gmis)
    assert first == second
    assert first in LAST_STEPS
    assert list(again.run(10, 0)) == [expected_total(2, 10)] * 2
    steps = {int(path.stem.partition("_")[2]) for path in tmp_path.iterdir()}
    assert steps == {9, 10}


def test_an_unknown_reaction_is_refused():
    with pytest.raises(ConfigError, match="'retry' is unknown"):
        GMIManager(cluster=cluster_of(1), on_failure="retry")
