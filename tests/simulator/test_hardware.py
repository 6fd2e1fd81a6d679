"""The catalogue: figures with sources, machines that round-trip, wires as they are, cuts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler.core.errors import ClusterError, ConfigError
from doppler.core.layout import Backend, Layout, Slice, whole_layout
from doppler.core.serialize import from_json, to_json
from simulator.hardware.catalogue import load_catalogue
from simulator.hardware.changes import change_catalogue
from simulator.hardware.entries import Figure, Rate
from simulator.hardware.machines import imported_hardware, named_cluster, named_hardware
from simulator.hardware.topology import parse_topology

CATALOGUE = load_catalogue()
MACHINES = CATALOGUE.machine_names
GIB = 1 << 30


def figures():
    for kind in ("gpus", "cpus", "links"):
        for entry in getattr(CATALOGUE, kind).values():
            for name in entry.__dataclass_fields__:
                value = getattr(entry, name)
                for item in value if isinstance(value, tuple) else (value,):
                    if not isinstance(item, str):
                        yield f"{kind}.{entry.name}.{name}", item


def test_every_figure_names_a_source_that_is_listed():
    for where, figure in figures():
        assert figure.source in CATALOGUE.sources, where
        if isinstance(figure, Figure | Rate):
            assert figure.value >= 0, where
    used = {figure.source for _, figure in figures()} | {n.source for n in CATALOGUE.nodes.values()}
    assert used == set(CATALOGUE.sources)


def test_the_machines_asked_for_are_there():
    assert {"p100_pcie_16", "v100_sxm2_16", "v100_sxm2_32", "a100_sxm4_40", "a100_sxm4_80"} <= set(
        CATALOGUE.gpus
    )
    assert {"h100_sxm5_80", "h200_sxm5_141", "b200_180", "l40s_48", "rtx4090_24"} <= set(
        CATALOGUE.gpus
    )
    assert "generic_core" in CATALOGUE.cpus


@pytest.mark.parametrize("name", MACHINES)
def test_machines_round_trip_and_join_every_pair(name):
    hardware, cluster = named_hardware(CATALOGUE, name), named_cluster(CATALOGUE, name)
    assert from_json(to_json(hardware), "hardware") == hardware
    assert from_json(to_json(cluster), "cluster") == cluster
    n = cluster.num_devices
    assert set(cluster.link_table) == {(a, b) for a in range(n) for b in range(n) if a != b}
    pairs = {(p.name, q.name) for p in hardware.processors for q in hardware.processors if p != q}
    assert set(hardware.link_table) == pairs  # the CPUs, too


def link(machine, src, dst):
    cluster = named_cluster(CATALOGUE, machine)
    return cluster.link_table[cluster.device_ids[src], cluster.device_ids[dst]]


MB = 1_000_000


@pytest.mark.parametrize(
    ("machine", "src", "dst", "num_bytes", "occupancy_ns", "latency_ns"),
    [
        ("dgx1_v100", "gpu0", "gpu1", 25 * MB, 1_000_000, 1900),  # one NVLink of 25 GB/s
        ("dgx1_v100", "gpu0", "gpu3", 25 * MB, 500_000, 1900),  # two
        ("dgx1_v100", "gpu0", "gpu5", 6 * MB, 1_000_000, 5500),  # 2 x PCIe and the 6 GB/s of QPI
        ("dgx_a100", "gpu0", "gpu7", 300 * MB, 1_000_000, 1900),  # 12 x 25 GB/s
        ("dgx_h100", "gpu0", "gpu7", 450 * MB, 1_000_000, 1900),  # 18 x 25 GB/s
        ("dgx_b200", "gpu3", "gpu4", 900 * MB, 1_000_000, 1900),  # 18 x 50 GB/s
        ("p100_pcie_4", "gpu0", "gpu3", 63 * MB, 4_000_000, 2500),  # 15.75 GB/s
        ("l40s_pcie_4", "gpu0", "gpu1", 63 * MB, 2_000_000, 5000),  # through one CPU: 31.5 GB/s
        ("l40s_pcie_4", "gpu0", "gpu2", 10 * MB, 1_000_000, 5500),  # through both: 10 GB/s
        ("two_dgx_a100_ib", "host0.gpu0", "host1.gpu0", 25 * MB, 1_000_000, 9000),  # HDR
        ("two_l40s_ethernet", "host1.gpu3", "host0.gpu0", 25 * MB, 2_000_000, 30000),
    ],
)
def test_transfer_times_by_hand(machine, src, dst, num_bytes, occupancy_ns, latency_ns):
    found = link(machine, src, dst)
    assert (found.occupancy_ns(num_bytes), found.latency_ns) == (occupancy_ns, latency_ns)


def test_wires_that_are_shared_are_one_bus():
    assert link("dgx1_v100", "gpu0", "gpu3").buses == ("gpu0>gpu3",)
    assert link("dgx_a100", "gpu0", "gpu3").buses == ("gpu0.nvlink.out", "gpu3.nvlink.in")
    assert link("p100_pcie_4", "gpu0", "gpu1").buses == ("gpu0.pcie.out", "gpu1.pcie.in")
    crossing = ("gpu0.pcie.out", "switch0.up", "switch1.down", "gpu2.pcie.in")
    assert link("p100_pcie_4", "gpu0", "gpu2").buses == crossing
    assert link("dgx1_v100", "gpu0", "gpu5").buses == (
        "gpu0.pcie.out",
        "switch0.up",
        "cpu0>cpu1",
        "switch2.down",
        "gpu5.pcie.in",
    )
    assert link("two_dgx_a100_ib", "host0.gpu1", "host1.gpu2").buses == (
        "host0.gpu1.pcie.out",
        "host0.nic1.out",
        "host1.nic2.in",
        "host1.gpu2.pcie.in",
    )
    far = link("two_l40s_ethernet", "host0.gpu2", "host1.gpu0").buses  # the adapter is at CPU 0
    assert far[:3] == ("host0.gpu2.pcie.out", "host0.switch2.up", "host0.nic0.out")


def test_rates_are_those_of_the_data_type():
    rates = [
        named_cluster(CATALOGUE, f"dgx_a100{mark}").devices[0].flop_per_s
        for mark in ("", "@fp32", "@tf32", "@bf16", "@fp64")
    ]
    assert rates == [19_500 * 10**9, 19_500 * 10**9, 156 * 10**12, 312 * 10**12, 9_700 * 10**9]
    with pytest.raises(ConfigError, match=r"P100 .* has no rate for 'bf16'.* fp16, fp32, fp64"):
        named_hardware(CATALOGUE, "p100_pcie_4@bf16")
    with pytest.raises(
        ConfigError, match="hardware 'dgx_a101' is unknown; did you mean 'dgx_a100'"
    ):
        named_hardware(CATALOGUE, "dgx_a101")


def cut(machine, *parts, gpu="gpu0"):
    """Applies a layout of (backend, units[, memory_bytes[, parent]]) to a machine."""
    slices = []
    for index, (backend, units, *rest) in enumerate(parts):
        memory, parent = (*rest, None, None)[:2]
        slices.append(
            Slice(
                parent=parent or gpu,
                backend=backend,
                units=units,
                name=f"s{index}",
                memory_bytes=memory,
            )
        )
    return Layout(name="cut", slices=tuple(slices)).apply(named_hardware(CATALOGUE, machine))


MIG, MPS, GREEN = Backend.mig, Backend.mps, Backend.green_context


def test_mig_instances_have_the_memory_and_engines_of_their_profile():
    small, double, large = cut("dgx_a100", (MIG, 14), (MIG, 14, 6 * GIB), (MIG, 42)).devices
    total = CATALOGUE.gpus["a100_sxm4_40"].memory_bytes.value
    bandwidth = CATALOGUE.gpus["a100_sxm4_40"].memory_bytes_per_s.value
    assert small.memory_bytes == total // 8
    assert double.memory_bytes == 6 * GIB  # a 1g.10gb, of which the layout grants 6 GiB
    assert large.memory_bytes == total // 2
    speeds = [device.memory_bytes_per_s for device in (small, double, large)]
    assert speeds == [bandwidth // 8, bandwidth // 4, bandwidth // 2]
    assert [device.copy_engines for device in (small, large)] == [1, 3]
    assert large.share == 42 / 108


def test_mig_instances_talk_over_the_host_only():
    cluster = cut("dgx_a100", (MIG, 42), (MIG, 42), (Backend.whole, 108, None, "gpu1"))
    assert cluster.link_table[0, 1].buses == (
        "gpu0.pcie.out",
        "switch0.up",
        "switch0.down",
        "gpu0.pcie.in",
    )
    assert cluster.link_table[0, 1].bytes_per_s == 31_500_000_000
    assert cluster.link_table[0, 2].buses[-1] == "gpu1.pcie.in"
    whole = cut("dgx_a100", (Backend.whole, 108), (Backend.whole, 108, None, "gpu1"))
    assert whole.link_table[0, 1].buses == ("gpu0.nvlink.out", "gpu1.nvlink.in")


def test_mps_slices_of_one_gpu_inherit_its_buses_and_share_its_memory():
    cluster = cut("dgx_a100", (MPS, 52), (MPS, 56), (Backend.whole, 108, None, "gpu1"))
    assert cluster.link_table[0, 1].bytes_per_s is None
    assert cluster.link_table[0, 2].buses == cluster.link_table[1, 2].buses


@pytest.mark.parametrize(
    "parts",
    [
        [(MIG, 56), (MIG, 42)],  # 4g + 3g
        [(MIG, 42), (MIG, 28), (MIG, 28)],
        [(MIG, 28)] * 3 + [(MIG, 14)],
        [(MIG, 14)] * 7,
        [(MIG, 14, 6 * GIB)] * 4,
        [(MIG, 98)],
    ],
)
def test_mig_layouts_that_a_gpu_holds(parts):
    assert cut("dgx_a100", *parts).num_devices == len(parts)


@pytest.mark.parametrize(
    ("machine", "parts", "message"),
    [
        ("dgx_a100", [(MIG, 42), (MIG, 42), (MIG, 14)], "memory slices.*which no placement holds"),
        ("dgx_a100", [(MIG, 42), *[(MIG, 14, 6 * GIB)] * 3], "which no placement holds"),
        ("dgx_a100", [(MIG, 56), (MIG, 28), (MIG, 28)], "own at most its 108 units"),
        ("dgx_h100", [(MIG, 26)] * 5, "at most 4 MIG instances 1g.20gb, and .* asks for 5"),
        ("dgx_a100", [(MIG, 20)], r"1g.5gb \(14, .*'s0' of layout 'cut' of 'gpu0' .*asks for 20"),
        ("dgx_a100", [(MIG, 14, 11 * GIB)], "asks for 14 with 11811160064 bytes"),
        ("dgx1_v100", [(MIG, 14)], "this GPU has no MIG, and slice 's0'"),
        ("dgx_a100", [(MIG, 42), (MPS, 32)], "MIG mode is cut into MIG instances only, .*'s1'"),
        ("dgx_a100", [(MPS, 10)], "chunks of 4 multiprocessors, and .* asks for 10"),
        ("dgx_h200", [(MPS, 12)], "chunks of 8 multiprocessors, and .* asks for 12"),
        ("p100_pcie_4", [(MPS, 8)], "MPS gives no share of this GPU"),
        ("dgx_h100", [(GREEN, 4)], "at least 8 multiprocessors and a multiple of 8, .* asks for 4"),
        ("dgx_h100", [(GREEN, 20)], "multiple of 8, and .* asks for 20"),
        ("dgx_a100", [(GREEN, 2)], "at least 4 multiprocessors and a multiple of 2"),
    ],
)
def test_impossible_cuts_are_refused_with_the_rule(machine, parts, message):
    with pytest.raises(ClusterError, match=message):
        cut(machine, *parts)


def test_cuts_of_each_back_end_that_exist():
    assert cut("dgx_h200", (MPS, 8), (MPS, 120)).num_devices == 2
    assert cut("dgx1_v100", (MPS, 13), (GREEN, 2)).num_devices == 2
    assert cut("dgx_a100", (GREEN, 6), (GREEN, 102)).num_devices == 2
    assert cut("p100_pcie_4", (GREEN, 1)).num_devices == 1


def test_cpus_can_be_placed_beside_gpus():
    hardware = named_hardware(CATALOGUE, "dgx1_v100")
    cores = Slice(parent="cpu1", backend=Backend.core_group, units=4, name="cores")
    layout = Layout(name="both", slices=(*whole_layout(hardware).slices, cores))
    cluster = layout.apply(hardware)
    ids = cluster.device_ids
    to_cpu = cluster.link_table[ids["gpu0"], ids["cores"]]
    assert to_cpu.buses == ("gpu0.pcie.out", "switch0.up", "cpu0>cpu1")
    assert cluster.link_table[ids["cores"], ids["gpu0"]].buses == ()  # copies on its stream


def test_a_topology_without_affinity_has_one_cpu_of_unknown_cores():
    topology = parse_topology("GPU0\tGPU1\nGPU0\tX\tSYS\nGPU1\tSYS\tX\n")
    hardware = imported_hardware(CATALOGUE, "plain", topology, CATALOGUE.nodes["rtx4090_pcie_4"])
    assert [(p.name, p.core_ids) for p in hardware.processors if p.kind == "cpu"] == [("cpu0", ())]
    assert hardware.link_table["gpu0", "gpu1"].buses == (
        "gpu0.pcie.out",
        "switch0.up",
        "switch1.down",
        "gpu1.pcie.in",
    )


@pytest.mark.parametrize(
    ("change", "entry", "number", "before", "after"),
    [
        ("nvlink.bytes_per_s*2", "nvlink3", "bytes_per_s", 25 * 10**9, 50 * 10**9),
        ("nvlink3.latency_ns/4", "nvlink3", "latency_ns", 1900, 475),
        ("gpu.launch_ns:0", "a100_sxm4_40", "launch_ns", 4000, 0),
        ("pcie.latency_ns+500", "pcie4_x16", "latency_ns", 2500, 3000),
        ("pcie.latency_ns-500", "pcie4_x16", "latency_ns", 2500, 2000),
        ("gpu.flop_per_s.bf16*1.5", "a100_sxm4_40", "flop_per_s.bf16", 312 * 10**12, 468 * 10**12),
        ("gpu.num_sms:1.32e2", "a100_sxm4_40", "num_sms", 108, 132),
    ],
)
def test_one_number_is_changed_and_nothing_else(change, entry, number, before, after):
    changed, changes = change_catalogue(CATALOGUE, "dgx_a100@bf16", change)
    assert [(c.entry, c.number, c.before, c.after) for c in changes] == [
        (entry, number, before, after)
    ]
    same = [
        name
        for kind in ("gpus", "cpus", "links", "nodes")
        for name, value in getattr(changed, kind).items()
        if getattr(CATALOGUE, kind)[name] != value
    ]
    assert same == [entry]
    assert load_catalogue() == CATALOGUE


def test_without_a_data_type_every_rate_changes():
    _, changes = change_catalogue(CATALOGUE, "dgx_a100", "gpu.flop_per_s*2")
    assert [c.number.partition(".")[2] for c in changes] == ["fp64", "fp32", "tf32", "fp16", "bf16"]


@pytest.mark.parametrize(
    ("machine", "change", "message"),
    [
        ("dgx_a100", "nvlink.bytes_per_s", "a change is written ENTRY.NUMBER"),
        ("dgx_a100", "nvlink.bytes_per_s^2", "a change is written ENTRY.NUMBER"),
        ("l40s_pcie_4", "nvlink.bytes_per_s*2", "uses no entry 'nvlink'; "),
        ("dgx_a100", "nvlink.byte_per_s*2", "did you mean 'bytes_per_s'"),
        ("dgx_a100", "gpu.flop_per_s.fp8*2", "has no rate 'fp8'"),
        ("dgx_a100", "gpu.launch_ns.fp32*2", "is one number"),
        ("dgx_a100", "nvlink.bytes_per_s*0", "is at least 1, and .* makes it 0"),
        ("dgx_a100", "nvlink.latency_ns-9999", "is at least 0, and .* makes it -8099"),
        ("dgx_a100", "nvlink.latency_ns/0", "nothing is divided by 0"),
        ("dgx_a101", "nvlink.latency_ns/2", "hardware 'dgx_a101' is unknown"),
    ],
)
def test_changes_that_are_none_are_refused(machine, change, message):
    with pytest.raises(ConfigError, match=message):
        change_catalogue(CATALOGUE, machine, change)


@given(factor=st.integers(1, 16))
def test_wider_nvlinks_shorten_exactly_the_transfers_over_nvlink(factor):
    changed, _ = change_catalogue(CATALOGUE, "dgx1_v100", f"nvlink.bytes_per_s*{factor}")
    before, after = named_cluster(CATALOGUE, "dgx1_v100"), named_cluster(changed, "dgx1_v100")
    for pair, old in before.link_table.items():
        scale = factor if ">" in old.buses[0] else 1
        assert after.link_table[pair].bytes_per_s == old.bytes_per_s * scale
