"""What `cluster=` may name, and which times it brings."""

import pytest

from doppler.core.cluster import Cluster, Device
from doppler.core.errors import ConfigError, FormatError
from doppler.core.layout import Backend, Layout, Slice
from doppler.core.serialize import save
from doppler.machines import read_machine
from simulator.hardware.catalogue import load_catalogue
from simulator.hardware.machines import named_cluster, named_hardware


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_name_is_a_machine_of_the_catalogue():
    machine = read_machine("dgx_a100@bf16")
    assert machine.cluster == named_cluster(load_catalogue(), "dgx_a100@bf16")
    assert machine.cluster.devices[0].flop_per_s == 312 * 10**12
    assert set(machine.roofline.saturation) == {f"gpu{index}" for index in range(8)}


def test_a_hardware_file_and_a_layout_file_make_a_cluster():
    hardware = named_hardware(load_catalogue(), "dgx_a100")
    save(hardware, "h.json")
    assert read_machine("h.json").cluster == read_machine("dgx_a100").cluster
    halves = tuple(
        Slice(parent="gpu0", backend=Backend.mps, units=52, name=name) for name in ("a", "b")
    )
    save(Layout(name="halves", slices=halves), "l.json")
    for text in ("h.json", "dgx_a100"):
        machine = read_machine(text, "l.json")
        assert [device.name for device in machine.cluster.devices] == ["a", "b"]
        assert machine.hardware == hardware


def test_a_cluster_file_knows_no_hardware_and_takes_no_layout():
    cluster = Cluster(name="c", devices=(Device(name="d", kind="cpu", parent="p"),))
    save(cluster, "c.json")
    machine = read_machine("c.json")
    assert (machine.cluster, machine.hardware) == (cluster, None)
    assert machine.roofline.saturation == {}
    with pytest.raises(ConfigError, match=r"'c\.json' is a cluster that is cut already"):
        read_machine("c.json", "l.json")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("dgx_a1000", ConfigError, "'dgx_a1000' is neither; did you mean 'dgx_a100'"),
        ("absent.json", ConfigError, "a machine of the catalogue or a file"),
        ("./dgx_a100", ConfigError, "'./dgx_a100' is neither"),
        ("dgx_a100@fp8", ConfigError, "has no rate for 'fp8'"),
        ("bad.json", FormatError, r"bad\.json is no valid JSON"),
    ],
)
def test_what_is_neither_is_refused(tmp_path, text, error, message):
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(error, match=message):
        read_machine(text)
