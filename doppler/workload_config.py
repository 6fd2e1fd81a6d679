"""Settings of `doppler graph NAME`: one schema per workload.

Tensor graphs and deep-RL jobs have the settings of the job of that name (`doppler.config`,
`doppler.tensor_config`), tensor graphs at the sizes of the published table.
"""

import enum
from dataclasses import dataclass, fields, make_dataclass
from typing import Any

from doppler.config import JOBS, AnyJobConfig
from doppler.graphs.families import Topology
from doppler.graphs.ffnn import FFNNShape
from doppler.graphs.llama import LlamaShape
from doppler.graphs.matmul_chain import ChainShards
from doppler.graphs.moe import MoEShape
from doppler.setting import setting
from doppler.tensor_config import TENSOR_JOBS

_MOE = MoEShape()


class ElementType(enum.StrEnum):
    """Element type of all tensors; bytes per element follow from it."""

    float16 = enum.auto()
    float32 = enum.auto()
    float64 = enum.auto()


@dataclass(slots=True, kw_only=True)
class WorkloadConfig:
    """doppler graph NAME: build a workload, print its counts, write it to a file."""

    name: str = setting("", "workload to build; empty = list all")
    output: str | None = setting(None, "file that the graph is written to (JSON)")


@dataclass(slots=True, kw_only=True)
class MoEConfig(WorkloadConfig):
    """A mixture-of-experts block."""

    tokens: int = setting(_MOE.tokens, "rows of x")
    hidden: int = setting(_MOE.hidden, "columns of x")
    feed_forward: int = setting(_MOE.feed_forward, "inner width of an expert")
    experts: int = setting(_MOE.experts, "number of experts, a chain of ops each")
    top_k: int = setting(_MOE.top_k, "experts that a token goes to")
    capacity_factor: str = setting(
        _MOE.capacity_factor, "room of an expert relative to an even spread, as a decimal"
    )
    row_blocks: int = setting(_MOE.row_blocks, "parts of the tokens")
    dtype: ElementType = setting(ElementType.float32, "element type of all tensors")


@dataclass(slots=True, kw_only=True)
class FamilyConfig(WorkloadConfig):
    """A generated graph with a cluster and times of its own; tiled families have these only."""

    num_ops: int = setting(100, "ops; tiled families take the nearest possible number")
    num_devices: int = setting(4, "devices of the cluster")
    ccr: float = setting(1.0, "mean transfer time over mean op time; 0 = no bytes, no latency")
    heterogeneity: float = setting(
        0.0, "from 0 to below 1: how much the ratio of two devices differs from op to op"
    )
    speed_spread: float = setting(
        1.0, "at least 1: the slowest device is up to its square times slower than the fastest"
    )
    topology: Topology = setting(
        Topology.ports, "how devices are joined: wires, ports, bus or two_nodes"
    )
    seed: int = setting(0, "seed of everything random")
    cluster_output: str | None = setting(None, "file that the cluster is written to (JSON)")
    costs_output: str | None = setting(
        None, "file that the op times on that cluster are written to (JSON)"
    )


@dataclass(slots=True, kw_only=True)
class LayeredConfig(FamilyConfig):
    """Layers of nearly equal width; an op reads some ops of the layers before its own."""

    layers: int | None = setting(
        None, "number of layers; null = about the square root of num_ops, drawn"
    )
    most_predecessors: int = setting(5, "an op reads 1 to that many others")
    reach: int = setting(3, "layers before its own that an op reads from")


@dataclass(slots=True, kw_only=True)
class SeriesParallelConfig(FamilyConfig):
    """A two-terminal series-parallel graph, grown edge by edge."""

    parallel_percent: int = setting(60, "chance that a new op lies beside an edge, not in it")


@dataclass(slots=True, kw_only=True)
class StencilConfig(FamilyConfig):
    """Time steps of a one-dimensional stencil."""

    width: int | None = setting(
        None, "cells per step; null = about the square root of num_ops, drawn"
    )
    radius: int = setting(1, "neighbours on each side that a cell reads")


@dataclass(slots=True, kw_only=True)
class TreeConfig(FamilyConfig):
    """A tree: many entries and one exit, or one entry and many exits."""

    arity: int = setting(4, "children per op on average")


@dataclass(slots=True, kw_only=True)
class ForkJoinConfig(FamilyConfig):
    """Fork-joins in a row."""

    branches: int | None = setting(None, "branches of one op each; null = drawn, at most 32")


def _derived(name: str, job: AnyJobConfig, values: dict[str, Any]) -> type[WorkloadConfig]:
    """Returns a schema with some settings of a job, at other values; help lines are the job's."""
    rows: list[tuple[str, Any, Any]] = []
    for item in fields(job):
        if item.name in values:
            kind = ElementType if item.name == "dtype" else item.type
            rows.append((item.name, kind, setting(values[item.name], item.metadata["help"])))
    return make_dataclass(name, rows, bases=(WorkloadConfig,), slots=True, kw_only=True)


def _values_of(shape: Any, **others: Any) -> dict[str, Any]:
    return {
        **{item.name: getattr(shape, item.name) for item in fields(shape)},
        **others,
        "dtype": ElementType.float32,
    }


JOB_KEYS = (
    "num_shards",
    "envs_per_shard",
    "horizon",
    "chunk",
    "fused",
    "mode",
    "staleness",
    "independent_trainers",
    "importance",
    "num_trainers",
    "num_segments",
    "all_reduce",
    "trainer_groups",
    "epochs",
    "minibatches",
    "hidden",
)
"""Settings of a deep-RL job that its graph depends on."""

TENSOR_WORKLOADS: dict[str, type[WorkloadConfig]] = {
    "chainmm": _derived(
        "ChainGraph", TENSOR_JOBS["chainmm"], _values_of(ChainShards(), size=10_000)
    ),
    "ffnn": _derived("FFNNGraph", TENSOR_JOBS["ffnn"], _values_of(FFNNShape())),
    "llama_block": _derived(
        "LlamaBlockGraph", TENSOR_JOBS["llama_block"], _values_of(LlamaShape())
    ),
    "llama_layer": _derived(
        "LlamaLayerGraph", TENSOR_JOBS["llama_layer"], _values_of(LlamaShape())
    ),
}
"""Settings of the tensor graphs, by name."""

FAMILY_WORKLOADS: dict[str, type[FamilyConfig]] = {
    "layered": LayeredConfig,
    "series_parallel": SeriesParallelConfig,
    "stencil": StencilConfig,
    "in_tree": TreeConfig,
    "out_tree": TreeConfig,
    "fork_join": ForkJoinConfig,
    "cholesky": FamilyConfig,
    "lu": FamilyConfig,
    "qr": FamilyConfig,
}
"""Settings of the generated families, by name."""

JOB_WORKLOADS: dict[str, type[WorkloadConfig]] = {
    name: _derived(
        "".join(part.title() for part in name.split("_")) + "Graph",
        job,
        {key: getattr(job, key) for key in JOB_KEYS},
    )
    for name, job in JOBS.items()
    if job.env and name != "gym"
}
"""Settings of the deep-RL jobs on our own environments, by name."""

WORKLOADS: dict[str, type[WorkloadConfig]] = {
    **TENSOR_WORKLOADS,
    "moe": MoEConfig,
    **FAMILY_WORKLOADS,
    **JOB_WORKLOADS,
}
"""Settings of every workload, by name."""
