"""User-written GMIs: launching, groups, communication, failure, restart."""

import os
import re
import subprocess
import sys
from pathlib import Path

import gmi_classes
import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler.core.cluster import Cluster, Device
from doppler.core.errors import ConfigError, KernelError, WorkerDiedError, WorkerHungError
from doppler.gmi import GMI, CollectiveKernel, GMIManager, Package
from doppler.graphs.collectives import direct, ring, tree
from executor.collectives.shared import AllReduceLayout
from executor.experience.flow import WhenFull
from executor.experience.packages import BatchLayout
from executor.experience.packages import Channel as Packed
from executor.experience.ring import RingLayout
from executor.gmi.communication import LINE_BYTES, Channel, Collective, Communication, Weights

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).parents[1]


def cluster_of(num_devices):
    cores = sorted(os.sched_getaffinity(0))
    return Cluster(
        name="cores",
        devices=tuple(
            Device(name=f"core{i}", kind="cpu", parent="cpu", cores=(cores[i % len(cores)],))
            for i in range(num_devices)
        ),
    )


def manager_of(*roles, **settings):
    return GMIManager(cluster=cluster_of(len(roles)), **settings)


def summers(count, deadline_s=30.0, schedule=None, resume=None, **settings):
    manager = manager_of(*["trainer"] * count, deadline_s=deadline_s)
    for device in range(count):
        manager.add_gmi(gmi_classes.Summer, "trainer", device, settings, resume)
    manager.add_collective("gradient", manager.group("trainer"), 8, "float64", schedule)
    return manager


def no_process_left():
    return not psutil.Process().children(recursive=True)


def expected_total(count, steps):
    return [float(sum(range(steps)) * count * (count + 1) // 2)] * 8


@pytest.mark.parametrize("schedule", [None, ring(3), tree(3), "hybrid(1)"])
def test_a_group_gets_the_sum_of_its_members_in_every_composition(schedule):
    manager = summers(3, schedule=schedule)
    reports = []
    results = manager.run(5, 0, on_report=lambda gmi_id, values: reports.append((gmi_id, values)))
    assert list(results) == [expected_total(3, 5)] * 3
    assert sorted(reports, key=lambda r: (r[0], r[1]["step"])) == [
        (gmi_id, {"step": step}) for gmi_id in range(3) for step in range(5)
    ]
    assert manager.survivors() == (0, 1, 2)
    assert no_process_left()


def test_gloo_does_the_same_where_it_is_asked_for():
    manager = manager_of("trainer", "trainer")
    for device in range(2):
        manager.add_gmi(gmi_classes.Summer, "trainer", device)
    group = manager.group("trainer")
    with pytest.raises(ConfigError, match=r"schedule is for shared memory, and .* kernel 'gloo'"):
        manager.add_collective("g", group, 8, "float64", ring(2), CollectiveKernel.gloo)
    manager.add_collective("gradient", group, 8, "float64", kernel=CollectiveKernel.gloo)
    assert "all-reduce gradient: GMIs 0,1, by gloo, 8 x float64" in manager.describe()
    assert list(manager.run(5, 0)) == [expected_total(2, 5)] * 2
    assert no_process_left()


def test_a_gmi_is_bound_before_it_starts_and_knows_its_group():
    manager = manager_of("agent", "trainer", "agent")
    for device, role in enumerate(["agent", "trainer", "agent"]):
        manager.add_gmi(gmi_classes.Placed, role, f"core{device}")
    results = manager.run(7, 9)
    for gmi_id, result in enumerate(results):
        assert result["cores"] == list(manager.cluster.devices[gmi_id].cores)
        assert result["threads"] == "1"
        assert result["arguments"] == (7, 9)
    assert [(r["rank"], r["group"]) for r in results] == [(0, (0, 2)), (0, (1,)), (1, (0, 2))]
    assert len({r["draw"] for r in results}) == 3
    assert [r["draw"] for r in manager.run(1, 1)] == [r["draw"] for r in results]
    assert manager.group("agent") == (0, 2)
    assert manager.group(parent="cpu") == (0, 1, 2)


@pytest.mark.parametrize(
    ("how", "error", "told"),
    [
        ("killed", WorkerDiedError, "was ended by SIGKILL"),
        ("printed", WorkerDiedError, "(?s)exit code 3.*ran out of contacts"),
        ("raised", KernelError, "(?s)ArithmeticError: the loss is NaN.*in fail"),
        ("silent", WorkerHungError, "within 1 s"),
    ],
)
def test_a_gmi_that_fails_is_named_and_the_others_go_on_from_a_checkpoint(how, error, told):
    manager = summers(3, deadline_s=1.0, fails=1, at=4, how=how)
    with pytest.raises(error, match=told) as caught:
        manager.run(10, 0)
    assert re.search(r"GMI 1 \(role 'trainer', device 'core1'\)", str(caught.value))
    assert "'gradient', call 4" in str(caught.value)
    assert manager.failed == (1,)
    assert manager.survivors() == (0, 2)
    assert no_process_left()
    saved = manager.last_checkpoint("trainer")
    assert saved is not None
    assert saved.step == 4
    assert saved.state["total"].tolist() == expected_total(3, 4)
    again = summers(2, resume=saved)
    rest = np.array(expected_total(2, 10)) - expected_total(2, 4)
    assert list(again.run(10, 0)) == [(saved.state["total"] + rest).tolist()] * 2


def test_who_waits_for_a_silent_gmi_is_not_to_blame():
    manager = manager_of("trainer", "agent", deadline_s=0.5)
    manager.add_gmi(gmi_classes.Waiter, "trainer", 0)
    manager.add_gmi(gmi_classes.Sleeper, "agent", 1)
    manager.add_channel("experience", [1], [0], [Package("number", "int64")], batch=4)
    with pytest.raises(WorkerHungError, match=r"none came from GMI 1 \(role 'agent'"):
        manager.run(1, 1)
    assert manager.failed == (1,)


def test_a_gmi_that_cannot_be_set_up_is_named():
    manager = manager_of("trainer")
    manager.add_gmi(gmi_classes.Lost, "trainer", 0)
    with pytest.raises(KernelError, match=r"(?s)GMI 0 .*no such environment"):
        manager.run(1, 1)


def test_records_reach_a_trainer_and_weights_come_back():
    manager = manager_of("agent", "agent", "trainer")
    agents = [manager.add_gmi(gmi_classes.Producer, "agent", d) for d in range(2)]
    trainer = manager.add_gmi(gmi_classes.Consumer, "trainer", 2, {"producers": 2})
    fields = [
        Package("producer", "int64"),
        Package("number", "int64"),
        Package("weight", "float32", (2,)),
    ]
    manager.add_channel("experience", agents, [trainer], fields, batch=8, num_slots=2)
    manager.add_weights("policy", trainer, agents, num_bytes=16)
    results = manager.run(num_episodes=3, num_steps=16)
    assert results[trainer] == {agent: list(range(48)) for agent in agents}


def test_layout_and_communication_are_told_before_anything_starts():
    manager = summers(2)
    manager.add_channel("experience", [0], [1], [Package("state", "float32", (60,))], batch=16)
    manager.add_weights("policy", 1, [0], num_bytes=2048)
    text = manager.describe()
    core = manager.cluster.devices[1].cores[0]
    assert f"GMI 1  role trainer  device core1 (cores {core}; 1 threads" in text
    assert "all-reduce gradient: GMIs 0,1, direct, 8 x float64 (0.1 KiB)" in text
    assert "channel experience: GMIs 0 -> 1, 1 packed channels, 16 records (3.8 KiB)" in text
    assert "weights policy: GMI 1 -> 0, 2.0 KiB" in text
    assert "limited" not in text
    manager.limit_memory = True
    assert "2 GMIs, seed 0, private memory limited" in manager.describe()


def test_what_does_not_fit_is_refused():
    class Local(GMI):
        pass

    manager = manager_of("trainer", "agent")
    with pytest.raises(ConfigError, match="'core7' of a GMI is unknown"):
        manager.add_gmi(gmi_classes.Placed, "trainer", "core7")
    with pytest.raises(ConfigError, match="stands in a function"):
        manager.add_gmi(Local, "trainer", 0)
    with pytest.raises(ConfigError, match="none was added"):
        manager.run(1, 1)
    manager.add_gmi(gmi_classes.Placed, "trainer", 0)
    with pytest.raises(ConfigError, match=r"'core0' is that of GMI 0 \(role 'trainer'"):
        manager.add_gmi(gmi_classes.Placed, "agent", 0)
    with pytest.raises(ConfigError, match="no GMI has role 'agent'"):
        manager.group("agent")
    manager.add_gmi(gmi_classes.Placed, "agent", 1)
    with pytest.raises(ConfigError, match="2 members, and schedule 'direct' is for 3"):
        manager.add_collective("sum", (0, 1), 8, schedule=direct(3))
    with pytest.raises(ConfigError, match="GMI 1 is on both"):
        manager.add_channel("c", [0, 1], [1], [Package("x", "float32")], batch=1)
    with pytest.raises(ConfigError, match="a link names 5"):
        manager.add_weights("w", 0, [5], 8)
    with pytest.raises(ConfigError, match=r"it is \[0, 0\]"):
        manager.add_collective("sum", (0, 0), 8)
    manager.add_collective("sum", (0, 1), 8)
    with pytest.raises(ConfigError, match="'sum' is taken"):
        manager.add_weights("sum", 0, [1], 8)


def test_a_class_that_is_no_gmi_is_refused_where_it_runs():
    manager = manager_of("trainer")
    manager.add_gmi(gmi_classes.Stranger, "trainer", 0)
    with pytest.raises(KernelError, match="'Stranger' of 'gmi_classes' is no subclass of GMI"):
        manager.run(1, 1)


LINKS = st.one_of(
    st.builds(
        lambda members, elements: Collective(
            name="",
            members=tuple(range(members)),
            layout=AllReduceLayout(schedule=direct(members), num_elements=elements),
        ),
        st.integers(1, 4),
        st.integers(1, 500),
    ),
    st.builds(
        lambda producers, consumers, width, batch: Channel(
            name="",
            producers=tuple(range(producers)),
            consumers=tuple(range(producers, producers + consumers)),
            ring=RingLayout(BatchLayout((Packed((Package("x", "float32", (width,)),)),), batch)),
            when_full=WhenFull.block,
        ),
        *[st.integers(1, 3)] * 2,
        st.integers(1, 9),
        st.integers(1, 9),
    ),
    st.builds(
        lambda size: Weights(name="", publisher=0, readers=(1,), num_bytes=size),
        st.integers(1, 999),
    ),
)


@given(links=st.lists(LINKS, max_size=5), num_gmis=st.integers(1, 9))
def test_links_lie_apart_in_the_shared_memory(links, num_gmis):
    named = tuple(
        type(link)(**{f: getattr(link, f) for f in link.__slots__} | {"name": str(index)})
        for index, link in enumerate(links)
    )
    plan = Communication(num_gmis=num_gmis, links=named)
    end = num_gmis * LINE_BYTES
    for link in named:
        start = plan.places[link.name]
        assert start % LINE_BYTES == 0
        assert start >= end
        end = start + link.size_bytes
        if isinstance(link, Channel):
            rings = sorted(link.offset(p, c) for p in link.producers for c in link.consumers)
            ends = [ring + link.ring.size_bytes for ring in rings]
            assert all(first <= second for first, second in zip(ends, rings[1:], strict=False))
            assert ends[-1] <= link.size_bytes
    assert plan.size_bytes >= end


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("gmi_pendulum.py", r"steps between falls: (\d+) at first, (\d+) at the end"),
        ("gmi_async.py", r"steps between falls: (\d+) at first, (\d+) at the end"),
        (
            "gmi_serving.py",
            r"(?s)batch \d+ \(analytic.* steps/s by 1 GMI; 8000 records, mean reward",
        ),
        ("gmi_graph.py", r"(?s)dp_only\(2\+0\+0\): ([\d,]+) steps/s.*annealing: ([\d,]+) steps/s"),
    ],
)
def test_the_examples_run(script, told, tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "examples" / script)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = re.search(told, done.stdout)
    assert found, done.stdout
    if found.lastindex == 2 and script != "gmi_graph.py":
        assert float(found[2]) > 5 * float(found[1])
