"""GMIs that go on after a failure: from which checkpoints, with which links, how often."""

import gmi_classes
import numpy as np
import pytest
from test_gmi import cluster_of, expected_total, manager_of, no_process_left, summers

from doppler.core.errors import ConfigError, FormatError, WorkerDiedError, WorkerHungError
from doppler.gmi import GMI, GMIManager, Package, Saved
from doppler.gmi_checkpoints import CheckpointStore, read_history, resume_points
from doppler.gmi_recovery import links_without, resumed
from doppler.graphs.collectives import direct, hybrid, ring
from executor.collectives.shared import AllReduceLayout
from executor.experience.flow import WhenFull
from executor.experience.packages import BatchLayout, group_packages
from executor.experience.ring import RingLayout
from executor.gmi.communication import Channel, Collective, GMISpec, Weights

pytestmark = pytest.mark.timeout(120)


class Unsaved(GMI):
    """Reduces with the group of others, and never saves anything."""

    def run(self, num_episodes, num_steps):
        for step in range(self.first_step, num_episodes):
            self.all_reduce(np.full(8, float(step)))
        return self.first_step, self.state


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


@pytest.mark.parametrize(
    ("history", "leaving", "steps"),
    [
        ({0: saved(5), 1: saved(4, 5), 2: saved(4)}, (), {0: 4, 1: 4, 2: 4}),
        # A role that saves nothing holds nobody back, and goes on at the step of the others.
        ({0: saved(5), 1: saved(4, 5)}, (), {0: 5, 1: 5, 2: 5}),
        # Neither does one that saves nothing but the step.
        ({0: saved(5), 1: saved(4, 5), 2: [Saved(3, {})]}, (), {0: 5, 1: 5, 2: 5}),
        ({0: [Saved(5, {})], 2: [Saved(3, {}), Saved(5, {})]}, (), {0: 5, 1: 5, 2: 5}),
        # The critic saves now and then: the trainers have forgotten its step, or have it still.
        ({0: saved(19, 20), 1: saved(19, 20), 2: saved(15)}, (), {}),
        ({0: saved(14, 15), 1: saved(15, 16), 2: saved(10, 15)}, (), {0: 15, 1: 15, 2: 15}),
        # A role that leaves as a whole holds nobody back.
        ({0: saved(19, 20), 1: saved(19, 20), 2: saved(15)}, (2,), {0: 20, 1: 20, 2: 20}),
    ],
)
def test_tied_members_of_all_roles_go_on_from_one_step_or_from_the_beginning(
    history, leaving, steps
):
    gmis = specs("trainer", "trainer", "critic")
    links = [collective(0, 1), collective(1, 2, name="other")]
    points = resume_points(gmis, links, history, leaving)
    assert {gmi_id: point.step for gmi_id, point in points.items()} == steps
    if 2 in points and 2 not in history:
        assert points[2].state == {}  # states stay within a role


def test_a_role_that_saves_nothing_holds_nobody_back_the_second_time_either():
    gmis = specs("trainer", "critic")
    links = [collective(0, 1)]
    store = CheckpointStore()
    store.put(gmis[0], *saved(5))
    gmis = resumed(gmis, resume_points(gmis, links, store.history))
    store.start_from(gmis)
    for checkpoint in saved(6, 7):
        store.put(gmis[0], checkpoint)
    points = resume_points(gmis, links, store.history)
    assert {gmi_id: point.step for gmi_id, point in points.items()} == {0: 7, 1: 7}


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


def test_a_member_of_a_role_that_saves_nothing_goes_on_beside_the_others():
    manager = manager_of("trainer", "critic", deadline_s=5.0)
    settings = {"fails": 0, "at": 4, "how": "killed"}
    manager.add_gmi(gmi_classes.Summer, "trainer", 0, settings)
    manager.add_gmi(Unsaved, "critic", 1)
    manager.add_collective("gradient", (0, 1), 8, "float64")
    manager.on_failure = "restart"
    total, (first_step, state) = manager.run(10, 0)
    (recovery,) = manager.recoveries
    assert total == [2.0 * sum(range(10))] * 8
    assert first_step == recovery.steps["trainer"]
    assert first_step in LAST_STEPS
    assert state == {}
    assert no_process_left()


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


def test_a_run_never_erases_checkpoints_that_it_does_not_go_on_from(tmp_path):
    first, other = tmp_path / "a", tmp_path / "b"
    for folder in (first, other):
        manager = summers(2)
        manager.checkpoint_dir = folder
        manager.run(3, 0)
    kept = {path: path.read_bytes() for path in other.iterdir()}
    again = summers(2)
    again.resume_from(first)
    for stranger in (again, summers(2, resume=manager.last_checkpoint())):
        stranger.checkpoint_dir = other
        with pytest.raises(ConfigError, match=r"has 'gmi0_2.safetensors': call resume_from"):
            stranger.run(5, 0)
        assert {path: path.read_bytes() for path in other.iterdir()} == kept
    again.resume_from(other)
    again.checkpoint_dir = first / ".." / "b"
    assert list(again.run(5, 0)) == [expected_total(2, 5)] * 2
    with pytest.raises(ConfigError, match="call resume_from"):
        again.run(5, 0)  # would go back to step 3


def test_a_folder_without_a_common_step_is_refused_and_kept(tmp_path):
    store = CheckpointStore(tmp_path)
    manager = manager_of("trainer", "critic")
    for device, role in enumerate(["trainer", "critic"]):
        manager.add_gmi(gmi_classes.Summer, role, device)
    manager.add_collective("gradient", (0, 1), 8, "float64")
    for spec, step in zip(manager.gmis, (20, 15), strict=True):
        store.put(spec, *saved(step))
    with pytest.raises(ConfigError, match="no step in common: GMI 0 has 20, GMI 1 has 15"):
        manager.resume_from(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_an_unknown_reaction_is_refused():
    with pytest.raises(ConfigError, match="'retry' is unknown"):
        GMIManager(cluster=cluster_of(1), on_failure="retry")
