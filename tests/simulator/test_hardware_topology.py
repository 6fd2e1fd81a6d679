"""`nvidia-smi topo -m`: published layouts are read, and what is no layout is refused by line.

The texts in `topologies/` follow public listings: DGX-1 (tabs, adapter names), DGX A100 (NCCL issue
1505, blanks, NIC columns), an 8-GPU Hopper board (tabs, adapter rows), two PCIe servers, and an
early one that writes SOC for SYS.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler.core.errors import FormatError
from simulator.hardware.topology import PCIE_RELATIONS, num_nvlinks, parse_topology
from simulator.hardware.wiring import gpu_groups, nearest_nic

FOLDER = Path(__file__).parent / "topologies"


def read(name):
    return parse_topology((FOLDER / f"{name}.txt").read_text(), name)


def test_dgx1_is_a_hybrid_cube_mesh_of_six_links_per_gpu():
    topology = read("dgx1_v100")
    links = [[topology.num_nvlinks(a, b) for b in range(8)] for a in range(8)]
    assert [sum(row) for row in links] == [6] * 8
    assert links[0] == [0, 1, 1, 2, 2, 0, 0, 0]
    assert topology.relations[0][5] == "SYS"
    assert topology.nics == ("mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3")
    switches, cpus = gpu_groups(topology)
    assert switches == (0, 0, 1, 1, 2, 2, 3, 3)  # two GPUs are PIX to one adapter each
    assert cpus == (0, 0, 0, 0, 1, 1, 1, 1)
    assert topology.cores[7] == (*range(20, 40), *range(60, 80))


def test_dgx_a100_has_four_numa_nodes_and_two_adapters_per_pair_of_gpus():
    topology = read("dgx_a100")
    assert all(topology.num_nvlinks(0, b) == 12 for b in range(1, 8))
    assert topology.numa == ("3", "3", "1", "1", "7", "7", "5", "5")
    assert len(topology.nics) == 12
    switches, cpus = gpu_groups(topology)
    assert switches == cpus == (0, 0, 1, 1, 2, 2, 3, 3)
    assert [nearest_nic(topology, gpu) for gpu in range(8)] == [0, 1, 2, 3, 6, 7, 8, 9]


def test_hopper_board_has_one_adapter_and_one_switch_per_gpu():
    topology = read("hgx_hopper")
    assert topology.num_nvlinks(7, 0) == 18
    assert gpu_groups(topology) == (tuple(range(8)), (0, 0, 0, 0, 1, 1, 1, 1))
    assert [nearest_nic(topology, gpu) for gpu in range(8)] == list(range(8))


def test_pcie_servers_share_switches_and_sockets():
    assert gpu_groups(read("pcie_4")) == ((0, 0, 1, 1), (0, 0, 0, 0))
    two = read("two_sockets")
    assert gpu_groups(two) == ((0, 1, 2, 3), (0, 0, 1, 1))
    assert two.cores[2] == (1, 3, 5, 7, 9, 11)
    old = read("four_k80_soc")
    assert old.relations[0] == ("X", "PHB", "SYS", "SYS")
    assert old.numa == ("",) * 4


def test_colours_and_missing_affinity_are_no_matter():
    text = "\x1b[4mGPU0\tGPU1\x1b[0m\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n"
    topology = parse_topology(text)
    assert topology.gpus == ("GPU0", "GPU1")
    assert topology.cores == ((), ())
    assert gpu_groups(topology) == ((0, 1), (0, 0))


GOOD = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tPHB\t0-3\nGPU1\tPHB\tX\t0-3\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("GPU0\tGPU1\tCPU Affinity", "", "no line is one"),
        ("GPU1\tPHB\tX\t0-3\n", "", "line 1: the header names GPU1, and no row does"),
        ("GPU1\tPHB\tX\t0-3", "GPU1\tPHB", r"line 3: .*\(2\), and the row of GPU1 has 1"),
        ("GPU1\tPHB", "GPU1\tPHP", "line 3: .*GPU1 and GPU0 is 'PHP'"),
        ("GPU1\tPHB", "GPU1\tNV0", "line 3: .*GPU1 and GPU0 is 'NV0'"),
        ("GPU1\tPHB", "GPU1\tX", "line 3: X stands for a device itself"),
        ("GPU0\tX", "GPU0\tPIX", "line 2: X stands for a device itself"),
        ("GPU1\tPHB", "GPU1\tSYS", "line 3: a path is the same both ways, and GPU1 to GPU0 is SYS"),
        ("PHB\tX\t0-3", "PHB\tX\tcore3", "line 3: CPU affinity is a list of cores .* 'core3'"),
        ("GPU1\tPHB\tX\t0-3", "GPU1\tPHB\tX\t0-3\nGPU1\tPHB\tX\t0-3", "line 4: GPU1 has a second"),
        ("\tGPU0\tGPU1", "\tGPU0\tGPU0", "line 1: the header names each GPU once"),
    ],
)
def test_bad_text_is_refused_in_one_line_with_its_number(old, new, message):
    assert old in GOOD
    with pytest.raises(FormatError, match=message) as error:
        parse_topology(GOOD.replace(old, new, 1), "topo.txt")
    assert "\n" not in str(error.value)


@given(st.integers(2, 6), st.data())
def test_any_symmetric_matrix_comes_back_as_it_was_printed(num_gpus, data):
    cell = st.sampled_from([*PCIE_RELATIONS, "NV1", "NV12"])
    cells = [["X"] * num_gpus for _ in range(num_gpus)]
    for a in range(num_gpus):
        for b in range(a):
            cells[a][b] = cells[b][a] = data.draw(cell)
    names = [f"GPU{gpu}" for gpu in range(num_gpus)]
    gap = data.draw(st.sampled_from(["\t", "    ", " \t "]))
    lines = [gap + gap.join([*names, "CPU Affinity"])]
    lines += [gap.join([name, *row, "0-1"]) for name, row in zip(names, cells, strict=True)]
    topology = parse_topology("\n".join(lines))
    assert [list(row) for row in topology.relations] == cells
    assert topology.cores == ((0, 1),) * num_gpus


def test_num_nvlinks_reads_the_number_only():
    assert [num_nvlinks(word) for word in ("NV4", "NV18", "NODE", "NV", "NVX")] == [4, 18, 0, 0, 0]
