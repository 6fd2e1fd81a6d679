"""What `cluster=` names: a machine of the catalogue, a cluster file or a hardware file."""

from dataclasses import dataclass
from pathlib import Path

from doppler.core.cluster import Cluster
from doppler.core.errors import ConfigError, nearest
from doppler.core.hardware import Hardware
from doppler.core.layout import whole_layout
from doppler.core.serialize import load_cluster, load_hardware, load_layout, read_json
from simulator.costs.roofline import RooflineModel, saturation_of
from simulator.hardware.catalogue import Catalogue, load_catalogue
from simulator.hardware.machines import named_hardware, split_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Something to place on.

    Attributes:
        cluster: Its devices and links.
        hardware: What they are cut from, or None where a cluster file says all that is known.
    """

    cluster: Cluster
    hardware: Hardware | None

    @property
    def roofline(self) -> RooflineModel:
        """The roofline of its rates; where the hardware is known, small ops do not fill a GPU."""
        return RooflineModel(saturation=saturation_of(self.hardware) if self.hardware else {})


def read_machine(
    text: str, layout: str | None = None, catalogue: Catalogue | None = None
) -> Machine:
    """Returns the machine that a user names.

    Args:
        text: Name of the catalogue ("dgx_a100", "dgx_a100@bf16"), else a file. A file that is
            called like a machine is written with its folder ("./dgx_a100").
        layout: File with the layout that cuts the hardware; None = whole GPUs, or single cores.
        catalogue: What is known by name; None = what ships with the project.

    Raises:
        ConfigError: If it is neither, or a layout is given for a cluster file.
        FormatError: If a file is damaged.
        ClusterError: If the layout does not fit the hardware.
    """
    known = load_catalogue() if catalogue is None else catalogue
    if split_name(text)[0] in known.machine_names:
        return _cut(named_hardware(known, text), layout)
    path = Path(text)
    if not path.exists():
        names = (*known.machine_names, "FILE.json")
        raise ConfigError(
            f"cluster is a machine of the catalogue or a file, and {text!r} is neither; "
            f"{nearest(split_name(text)[0], names)}"
        )
    document = read_json(path)
    if isinstance(document, dict) and document.get("type") == "hardware":
        return _cut(load_hardware(path), layout)
    cluster = load_cluster(path)
    if layout is not None:
        raise ConfigError(f"a layout cuts hardware, and {text!r} is a cluster that is cut already")
    return Machine(cluster=cluster, hardware=None)


def _cut(hardware: Hardware, layout: str | None) -> Machine:
    chosen = whole_layout(hardware) if layout is None else load_layout(layout)
    return Machine(cluster=chosen.apply(hardware), hardware=hardware)
