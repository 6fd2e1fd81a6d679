"""The catalogue: entries by name, read from the JSON files of this package."""

import functools
import importlib.resources
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from doppler.core.codecs.fields import decode_dataclass
from doppler.core.errors import ConfigError, nearest
from simulator.hardware.entries import (
    CpuEntry,
    GpuEntry,
    LinkEntry,
    NodeEntry,
    PodEntry,
    Source,
)

DEFAULT_DTYPE = "fp32"
ENTRY_TYPES: dict[str, type] = {
    "sources": Source,
    "gpus": GpuEntry,
    "cpus": CpuEntry,
    "links": LinkEntry,
    "nodes": NodeEntry,
    "pods": PodEntry,
}


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """Everything that is known by name.

    Attributes:
        sources, gpus, cpus, links, nodes, pods: Name -> entry.
    """

    sources: Mapping[str, Source]
    gpus: Mapping[str, GpuEntry]
    cpus: Mapping[str, CpuEntry]
    links: Mapping[str, LinkEntry]
    nodes: Mapping[str, NodeEntry]
    pods: Mapping[str, PodEntry]

    def node_of(self, name: str) -> tuple[NodeEntry, int, str | None]:
        """Returns the host of a named machine, how many there are, and the network between them.

        Raises:
            ConfigError: If no node and no pod has that name; the nearest name is shown.
        """
        if name in self.nodes:
            return self.nodes[name], 1, None
        if name in self.pods:
            pod = self.pods[name]
            return self.nodes[pod.node], pod.count, pod.network
        raise ConfigError(f"hardware {name!r} is unknown; {nearest(name, self.machine_names)}")

    @property
    def machine_names(self) -> tuple[str, ...]:
        """Names of nodes and of pods."""
        return (*self.nodes, *self.pods)


@functools.cache
def load_catalogue() -> Catalogue:
    """Returns the catalogue that ships with the project."""
    return Catalogue(**{kind: _load(kind, cls) for kind, cls in ENTRY_TYPES.items()})


def _load(kind: str, cls: type) -> Mapping[str, Any]:
    file = importlib.resources.files("simulator.hardware") / "data" / f"{kind}.json"
    rows = json.loads(file.read_text(encoding="utf-8"))[kind]
    entries = [decode_dataclass(cls, row, f"{kind}.json: [{n}]") for n, row in enumerate(rows)]
    return {entry.name: entry for entry in entries}
