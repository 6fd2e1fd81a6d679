"""Layouts: what they make of hardware, and what they refuse."""

from dataclasses import replace

import pytest

from doppler.core.cluster import Link
from doppler.core.errors import ClusterError
from doppler.core.hardware import Hardware, Processor
from doppler.core.layout import Backend, Layout, Slice, all_cores_layout, per_core_layout
from doppler.core.partition import MigProfile, PartitionRules, check_instances

CPU = Processor(
    name="cpu0",
    kind="cpu",
    model="cpu",
    num_units=4,
    memory_bytes=1000,
    core_ids=(8, 9, 10, 11),
    publish_ns=7,
    flop_per_s=400,
)


def gpu(name):
    return Processor(
        name=name, kind="gpu", model="gpu", num_units=8, memory_bytes=800, copy_engines=2
    )


HARDWARE = Hardware(
    name="host",
    processors=(CPU, gpu("gpu0"), gpu("gpu1")),
    links=(
        Link(src="gpu0", dst="gpu1", latency_ns=5, bytes_per_s=9, buses=("out0", "in1")),
        Link(src="gpu1", dst="gpu0", latency_ns=5, bytes_per_s=9, buses=("out1", "in0")),
    ),
)


def part(parent, backend, units, name, **fields):
    return Slice(parent=parent, backend=backend, units=units, name=name, **fields)


def apply(*slices):
    return Layout(name="cut", slices=slices).apply(HARDWARE)


def test_core_groups_get_cores_in_order_and_their_share():
    cluster = apply(
        part("cpu0", Backend.core_group, 1, "one"),
        part("cpu0", Backend.core_group, 3, "three", memory_bytes=10, num_streams=2),
    )
    one, three = cluster.devices
    assert (one.cores, three.cores) == ((8,), (9, 10, 11))
    assert (one.share, three.share) == (0.25, 0.75)
    assert (one.memory_bytes, three.memory_bytes) == (250, 10)
    assert (one.flop_per_s, three.flop_per_s) == (100, 300)
    assert three.num_streams == 2
    assert one.kind == "cpu"
    assert cluster.link_table[0, 1].latency_ns == 7
    assert cluster.link_table[0, 1].bytes_per_s is None
    assert cluster.siblings == ((1,), (0,))


def test_slices_of_different_parents_inherit_the_link_and_its_buses():
    cluster = apply(
        part("gpu0", Backend.mps, 4, "a"),
        part("gpu0", Backend.mps, 4, "b"),
        part("gpu1", Backend.whole, 8, "c"),
    )
    assert cluster.link_table[0, 2].buses == cluster.link_table[1, 2].buses == ("out0", "in1")
    assert cluster.link_table[2, 0].buses == ("out1", "in0")
    assert cluster.link_table[0, 1].bytes_per_s is None
    assert [device.kind for device in cluster.devices] == ["mps", "mps", "cuda"]


def test_isolated_slices_of_one_gpu_have_no_link():
    cluster = apply(part("gpu0", Backend.mig, 4, "a"), part("gpu0", Backend.mig, 4, "b"))
    assert cluster.link_table == {}


def test_ready_made_layouts_cover_all_cores():
    per_core = per_core_layout(CPU).apply(HARDWARE)
    assert [device.cores for device in per_core.devices] == [(8,), (9,), (10,), (11,)]
    whole = all_cores_layout(CPU).apply(HARDWARE)
    assert [device.cores for device in whole.devices] == [(8, 9, 10, 11)]


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        ([part("gpu7", Backend.mps, 1, "a")], "names processor 'gpu7'; did you mean"),
        ([part("gpu0", Backend.core_group, 1, "a")], "a core_group cuts a cpu"),
        ([part("cpu0", Backend.mps, 1, "a")], "a core_group cuts a cpu"),
        ([part("cpu0", Backend.core_group, 0, "a")], "asks for 0"),
        (
            [
                part("cpu0", Backend.core_group, 3, "a"),
                part("cpu0", Backend.core_group, 2, "b"),
            ],
            "at most its 4 units, and slice 'b' .* asks for 2 with 3 taken",
        ),
        (
            [part("gpu0", Backend.mps, 1, "a"), part("gpu0", Backend.mps, 1, "a")],
            "stands twice",
        ),
    ],
)
def test_broken_rules_are_named(slices, message):
    with pytest.raises(ClusterError, match=message):
        apply(*slices)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"memory_bytes": -1}, "memory_bytes is at least 0, and 't' has -1"),
        ({"copy_engines": -1}, "copy_engines is at least 0"),
        ({"publish_ns": -1}, "publish_ns is at least 0"),
        ({"flop_per_s": -1}, "flop_per_s is at least 0"),
        ({"memory_bytes_per_s": -1}, "memory_bytes_per_s is at least 0"),
        ({"launch_ns": -1}, "launch_ns is at least 0"),
        ({"num_streams": 0}, "num_streams is at least 1"),
        ({"core_ids": (3, 3)}, r"different ids of at least 0, and 't' has \(3, 3\)"),
        ({"core_ids": (0, -1)}, "different ids of at least 0"),
    ],
)
def test_numbers_of_a_processor_are_in_range(fields, message):
    values = {"name": "t", "kind": "cpu", "model": "t", "num_units": 2, "memory_bytes": 1}
    with pytest.raises(ClusterError, match=message):
        Processor(**{**values, **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"latency_ns": -1}, "latency_ns is at least 0, and link 'gpu0' -> 'gpu1' of hardware 'h'"),
        ({"bytes_per_s": 0}, "bytes_per_s is positive"),
        ({"buses": ("x", "x")}, "holds a bus once"),
        ({"dst": "gpu0"}, "joins one with itself"),
    ],
)
def test_links_of_hardware_obey_the_rules_of_links(fields, message):
    link = Link(**{"src": "gpu0", "dst": "gpu1", "bytes_per_s": 9, **fields})
    with pytest.raises(ClusterError, match=message):
        Hardware(name="h", processors=(gpu("gpu0"), gpu("gpu1")), links=(link,))


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (Backend.mps, "MPS gives no share of this GPU, and slice 'a'"),
        (Backend.mig, "this GPU has no MIG, and slice 'a'"),
        (Backend.green_context, "slice 'a'"),
    ],
)
def test_rules_without_a_cut_allow_none(backend, message):
    """`partitions` without entries says that there is no such cut; None says nothing."""
    whole = replace(gpu("gpu0"), partitions=PartitionRules())
    hardware = Hardware(name="h", processors=(whole,))
    layout = Layout(name="cut", slices=(part("gpu0", backend, 4, "a"),))
    with pytest.raises(ClusterError, match=message):
        layout.apply(hardware)
    unknown = Hardware(name="h", processors=(gpu("gpu0"),))
    assert layout.apply(unknown).num_devices == 1


def test_instances_end_with_the_last_memory_slice():
    """Four slices from slice 4 end with slice 7, the last; from slice 5 they would end with 8."""
    half = MigProfile(
        name="half",
        units=4,
        memory_slices=4,
        memory_bytes=400,
        max_count=2,
        starts=(4,),
        copy_engines=1,
    )
    check_instances((half,), "here")
    with pytest.raises(ClusterError, match="share 8 memory slices"):
        check_instances((replace(half, starts=(5,)),), "here")
    with pytest.raises(ClusterError, match="share 8 memory slices"):
        check_instances((half, half), "here")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"units": 0}, "units is at least 1, and MIG profile 'p' has 0"),
        ({"memory_slices": 0}, "memory_slices is at least 1"),
        ({"memory_bytes": -1}, "memory_bytes is at least 0"),
        ({"max_count": 0}, "max_count is at least 1"),
        ({"copy_engines": -1}, "copy_engines is at least 0"),
        ({"starts": (0, -1)}, "memory slices from 0 on"),
    ],
)
def test_numbers_of_a_mig_profile_are_in_range(fields, message):
    values = {
        "name": "p",
        "units": 1,
        "memory_slices": 1,
        "memory_bytes": 1,
        "max_count": 1,
        "starts": (0,),
        "copy_engines": 1,
    }
    with pytest.raises(ClusterError, match=message):
        MigProfile(**{**values, **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mps_step": -2}, "at least 0, and they are -2, 0, 0"),
        ({"green_min": 8}, "have a green_step of at least 1"),
    ],
)
def test_steps_of_cuts_are_in_range(fields, message):
    with pytest.raises(ClusterError, match=message):
        PartitionRules(**fields)


def test_a_pair_of_processors_has_one_link():
    twice = tuple(Link(src="gpu0", dst="gpu1", latency_ns=ns) for ns in (5, 9))
    with pytest.raises(ClusterError, match="'gpu0' -> 'gpu1' of hardware 'h' stands twice"):
        Hardware(name="h", processors=(gpu("gpu0"), gpu("gpu1")), links=twice)


def test_gpus_of_hosts_that_are_not_joined_have_no_path_through_them():
    """Each GPU reaches its own CPU; only with a link between the CPUs is there a way across."""
    hosts = tuple(replace(CPU, name=f"cpu{index}") for index in range(2))
    inside = [
        Link(src=a, dst=b, latency_ns=1)
        for index in range(2)
        for a, b in ((f"gpu{index}", f"cpu{index}"), (f"cpu{index}", f"gpu{index}"))
    ]
    processors = (*hosts, gpu("gpu0"), gpu("gpu1"))
    apart = Hardware(name="h", processors=processors, links=tuple(inside))
    assert apart.link_through_host("gpu0", "gpu1") is None
    assert apart.link_through_host("gpu0", "gpu0").latency_ns == 2
    across = (*inside, Link(src="cpu0", dst="cpu1", latency_ns=7))
    joined = Hardware(name="h", processors=processors, links=across)
    assert joined.link_through_host("gpu0", "gpu1").latency_ns == 9
    assert joined.link_through_host("gpu1", "gpu0") is None


def test_hardware_checks_its_processors_and_links():
    with pytest.raises(ClusterError, match="unique names"):
        Hardware(name="h", processors=())
    with pytest.raises(ClusterError, match="unique names"):
        Hardware(name="h", processors=(CPU, CPU))
    with pytest.raises(ClusterError, match="names 'x'"):
        Hardware(name="h", processors=(CPU,), links=(Link(src="cpu0", dst="x"),))
    with pytest.raises(ClusterError, match="is 'tpu'"):
        Processor(name="t", kind="tpu", model="t", num_units=1, memory_bytes=1)
    with pytest.raises(ClusterError, match="num_units is at least 1"):
        Processor(name="t", kind="gpu", model="t", num_units=0, memory_bytes=1)
    with pytest.raises(ClusterError, match=r"one id per unit \(2\)"):
        Processor(name="t", kind="cpu", model="t", num_units=2, memory_bytes=1, core_ids=(1, 2, 3))
