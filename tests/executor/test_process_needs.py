"""What each process of a run needs, numbers by hand; and when a cluster is oversubscribed."""

import io
import os
from types import SimpleNamespace

import pytest
from core_clusters import core_cluster, problem_of
from rich.console import Console
from toy_job import toy_graph

from doppler.console import View
from doppler.core.cluster import Cluster, Device
from doppler.core.errors import CapacityError
from doppler.core.problem import Problem
from doppler.gmi import GMI, GMIManager
from doppler.graphs.collectives import direct
from doppler.preflight import show_preflight
from doppler.reporting import core_facts
from executor.collectives.kernels import CollectiveKernel
from executor.collectives.shared import AllReduceLayout
from executor.gmi.communication import Collective, Communication
from executor.host import available_threads
from executor.launch.gpus import GpuInventory, read_gpus
from executor.launch.seats import plan_seats
from executor.preflight import check_needs, needs_of
from executor.process_needs import core_demand, oversubscription, process_needs
from tests.executor.fake_nvml import FakeNvml

GIB = 1 << 30
INVENTORY = read_gpus(FakeNvml(count=1))


def core_group(name, *cores, streams=1):
    return Device(
        name=name,
        kind="cpu",
        parent="cpu",
        cores=cores,
        num_streams=streams,
        memory_bytes=3 * GIB,
    )


def on_gpu(name, kind, units):
    return Device(
        name=name, kind=kind, parent="gpu0", share=units / 132, memory_bytes=20 * GIB, num_streams=2
    )


def needs_by_process(*devices, num_watched=0):
    cluster = Cluster(name="c", devices=devices)
    return process_needs(cluster, plan_seats(cluster, INVENTORY, {}), num_watched)


def test_a_core_group_keeps_its_cores_and_threads():
    first, second = needs_by_process(core_group("a", 0), core_group("b", 1, 2, 3, 4, streams=2))
    assert (first.num_cores, first.threads, first.descriptors) == (1, 1 + 1, 8 + 1)
    assert (second.num_cores, second.threads, second.descriptors) == (4, 2 * 2 + 1, 8 + 1)
    assert second.cores == (1, 2, 3, 4)
    assert second.text == (
        "process of 'b': 4 core(s) (bound to 1,2,3,4), 5 threads, 9 file descriptors, 3.0 GiB of "
        "cpu's memory"
    )


def test_a_process_that_feeds_a_gpu_keeps_a_core():
    (client,) = needs_by_process(on_gpu("m", "mps", 66), num_watched=3)
    assert (client.num_cores, client.threads) == (1, 2 + 1)
    assert client.descriptors == 8 + 1 + 3 + 64
    (contexts,) = needs_by_process(*(on_gpu(f"g{i}", "green_context", 64) for i in range(2)))
    assert (contexts.num_cores, contexts.threads) == (1, 2 * 2 + 1)
    assert contexts.descriptors == 8 + 2 + 64
    assert contexts.memory_bytes == 40 * GIB
    assert "'g0', 'g1': 1 core(s) (not bound)" in contexts.text


@pytest.mark.parametrize(
    ("devices", "demand", "text"),
    [
        ([core_group("a", 0), core_group("b", 1)], (2, 2), ""),
        (
            [core_group("a", 0), core_group("b", 1), core_group("c", 0)],
            (3, 3),
            "oversubscribed: 3 processes need 3 cores, and there are 2",
        ),
        ([core_group("a", 0, 1), core_group("b", 1)], (2, 3), "2 processes need 3 cores"),
        ([on_gpu(f"g{i}", "green_context", 40) for i in range(3)], (1, 1), ""),
        ([on_gpu(f"m{i}", "mps", 40) for i in range(3)], (3, 3), "3 processes need 3 cores"),
        ([on_gpu("m", "mps", 40), core_group("a", 0, 1)], (2, 3), "2 processes need 3 cores"),
    ],
)
def test_a_cluster_that_needs_more_cores_than_there_are(devices, demand, text):
    cluster = Cluster(name="c", devices=tuple(devices))
    assert core_demand(cluster) == demand
    found = oversubscription(cluster, 2)
    assert text in found
    assert bool(text) == bool(found)
    assert oversubscription(cluster, 8) == ""


def host(tmp_path, pids):
    """A host whose control group has 7 threads."""
    for name, text in {
        "proc/cpuinfo": "model name : x\n",
        "proc/meminfo": f"MemTotal: {GIB // 128} kB\nMemAvailable: {GIB // 128} kB\n",
        "proc/self/cgroup": "0::/a\n",
        "sys/fs/cgroup/a/pids.max": pids,
        "sys/fs/cgroup/a/pids.current": "7\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_threads_that_the_control_group_does_not_allow_are_refused(tmp_path):
    cluster = core_cluster(3)
    seats = plan_seats(cluster, GpuInventory(), {})

    def needs(root):
        found = needs_of(cluster, seats, GpuInventory(), "/dev/shm", 1, "the arena", root=root)
        return {need.name: need for need in found}

    assert available_threads(host(tmp_path, "12\n")) == 5
    threads = needs(tmp_path)["threads"]
    assert (threads.needed, threads.found) == (6, 5)
    with pytest.raises(CapacityError, match=r"needs 6 threads, and the control group .* has 5"):
        check_needs([threads])
    assert available_threads(host(tmp_path, "max\n")) is None
    assert "threads" not in needs(tmp_path)


def test_descriptors_are_counted_per_process_too(monkeypatch):
    cluster = core_cluster(2)
    seats = plan_seats(cluster, GpuInventory(), {})
    arguments = (cluster, seats, GpuInventory(), "/dev/shm", 1, "the arena")
    monkeypatch.setattr("executor.preflight.resource.getrlimit", lambda kind: (60, 60))
    needs = {need.name: need for need in needs_of(*arguments, num_watched=52)}
    own = needs["file descriptors per process"]
    assert (own.needed, own.found, own.fits) == (8 + 1 + 52, 60, False)
    with pytest.raises(CapacityError, match="the largest process of the run needs 61 file"):
        check_needs([own])


def test_a_gmi_watches_the_members_of_all_its_collectives():
    def all_reduce(name, *members, kernel=CollectiveKernel.shared_memory):
        layout = AllReduceLayout(schedule=direct(len(members)), num_elements=1)
        return Collective(name=name, members=members, layout=layout, kernel=kernel)

    links = (all_reduce("a", 0, 1, 2), all_reduce("b", 2, 3, kernel=CollectiveKernel.gloo))
    assert Communication(num_gmis=4, links=links).num_watched == 2 + 1
    assert Communication(num_gmis=4, links=()).num_watched == 0


def preflight_text(problem, **settings):
    console = Console(width=200, record=True, file=io.StringIO())
    show_preflight(problem, "/dev/shm", View(console), **settings)
    return console.export_text()


def test_the_preflight_says_which_memory_is_limited():
    problem = problem_of(toy_graph(), num_devices=2)
    assert "may take" not in preflight_text(problem)
    text = preflight_text(problem, limit_memory=True)
    assert text.count("of cpu's memory, the most that it may take") == 2


def test_the_preflight_says_where_no_memory_can_be_limited(monkeypatch):
    cluster = Cluster(name="c", devices=(on_gpu("m", "mps", 66),))
    seats = SimpleNamespace(seats=plan_seats(cluster, INVENTORY, {}), inventory=INVENTORY)
    monkeypatch.setattr("doppler.preflight.Seating", lambda cluster: seats)
    problem = Problem(graph=toy_graph(), cluster=cluster)
    assert "is limited" not in preflight_text(problem)
    text = preflight_text(problem, limit_memory=True)
    assert "may take" not in text
    assert "no memory is limited: that is for core groups" in text


def test_the_preflight_is_printed_process_by_process():
    num_cores = len(os.sched_getaffinity(0))
    text = preflight_text(problem_of(toy_graph(), num_devices=num_cores + 1))
    for index in range(num_cores + 1):
        assert f"process of 'core{index}': 1 core(s) (bound to" in text
    assert f"OVERSUBSCRIBED a run in {num_cores + 1} processes needs {num_cores + 1} cores" in text
    assert "fits" in text


class Idle(GMI):
    """A GMI that does nothing."""

    def run(self, num_episodes, num_steps):
        return None


def test_more_gmis_than_cores_are_told_in_description_and_report():
    num_cores = len(os.sched_getaffinity(0))
    cluster = core_cluster(num_cores + 1)
    manager = GMIManager(cluster=cluster)
    for device in range(num_cores):
        manager.add_gmi(Idle, "learner", device)
    assert "oversubscribed" not in manager.describe()
    manager.add_gmi(Idle, "learner", num_cores)
    text = f"{num_cores + 1} processes need {num_cores + 1} cores, and there are {num_cores}"
    assert f"oversubscribed: {text}" in manager.describe()
    (fact,) = core_facts(cluster)
    assert text in fact.value
    assert core_facts(core_cluster(num_cores)) == ()
