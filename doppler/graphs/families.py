"""Generated problems: a family, a size, a cluster, and knobs; for training and for evaluation.

    instance = generate("layered", 100, 8, ccr=10.0, heterogeneity=0.5, seed=3)
    scorer = CompiledScorer(instance.problem, instance.costs)

Definitions (held by tests):
    op time      w(v, d) = work(v) * slowness(d) * U(1 - heterogeneity, 1 + heterogeneity), scaled
                 so that the mean over all ops and devices is `MEAN_OP_NS`. In the tiled families
                 the last factor is drawn per (kind, device), as kernels differ, else per
                 (op, device). slowness(d) is drawn log-uniform between 1 / spread and spread.
    CCR          mean over edges of the mean transfer time over all ordered pairs of devices
                 (latency + bytes / bandwidth), divided by the mean op time. A tenth of the mean
                 transfer time is latency.
Everything follows from the arguments; equal arguments give equal problems on every machine.

Sources: Topcuoglu et al. 2002 (CCR, heterogeneity), facts of the portfolio study (families).
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import Costs, make_costs
from doppler.core.errors import ConfigError, GraphError, nearest
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.problem import Problem
from doppler.graphs import skeleton as random_shapes
from doppler.graphs import tiled
from doppler.graphs.skeleton import Skeleton

MEAN_OP_NS = 1_000_000
BYTES_PER_S = 10**10
LATENCY_SHARE = 0.1
FAR_FACTOR = 4

Floats = NDArray[np.float64]


class Family(enum.Enum):
    """Shapes of generated graphs."""

    layered = "layered"
    series_parallel = "series_parallel"
    stencil = "stencil"
    in_tree = "in_tree"
    out_tree = "out_tree"
    fork_join = "fork_join"
    cholesky = "cholesky"
    lu = "lu"
    qr = "qr"


class Topology(enum.Enum):
    """How the devices are joined; every pair has a link.

    `wires`: a bus per ordered pair. `ports`: an egress and an ingress bus per device.
    `bus`: one bus for all. `two_nodes`: ports, and the devices fall into two halves joined by
    one wire each way that is 4 times slower and has 4 times the latency.
    """

    wires = "wires"
    ports = "ports"
    bus = "bus"
    two_nodes = "two_nodes"


_RANDOM: dict[Family, Callable[..., Skeleton]] = {
    Family.layered: random_shapes.layered,
    Family.series_parallel: random_shapes.series_parallel,
    Family.stencil: random_shapes.stencil,
    Family.in_tree: random_shapes.in_tree,
    Family.out_tree: random_shapes.out_tree,
    Family.fork_join: random_shapes.fork_join,
}
_TILED: dict[Family, Callable[[int], Skeleton]] = {
    Family.cholesky: tiled.nearest_cholesky,
    Family.lu: tiled.nearest_lu,
    Family.qr: tiled.nearest_qr,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One generated problem with its times.

    Attributes:
        problem: Graph and cluster; the objective is the makespan.
        costs: Times per (op, device).
    """

    problem: Problem
    costs: Costs

    @property
    def graph(self) -> DataflowGraph:
        """The graph."""
        return self.problem.graph

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        return self.problem.cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySpec:
    """The arguments of `generate` as data, for lists of instances; `instance` makes it."""

    family: Family
    num_ops: int
    num_devices: int
    ccr: float
    heterogeneity: float = 0.0
    speed_spread: float = 1.0
    topology: Topology = Topology.ports
    shape: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0

    def instance(self) -> Instance:
        """Returns the problem of these arguments; errors are those of `generate`."""
        return generate(
            self.family,
            self.num_ops,
            self.num_devices,
            ccr=self.ccr,
            heterogeneity=self.heterogeneity,
            seed=self.seed,
            speed_spread=self.speed_spread,
            topology=self.topology,
            shape=self.shape,
        )


def generate(
    family: Family | str,
    num_ops: int,
    num_devices: int,
    *,
    ccr: float,
    heterogeneity: float = 0.0,
    seed: int = 0,
    speed_spread: float = 1.0,
    topology: Topology | str = Topology.ports,
    shape: Mapping[str, int] | None = None,
) -> Instance:
    """Returns a generated problem.

    Args:
        family: Shape of the graph.
        num_ops: Ops; exact for the random families, the nearest possible for the tiled ones.
        num_devices: Devices.
        ccr: Communication-to-computation ratio; 0 = no bytes and no latency.
        heterogeneity: In [0, 1): how much the ratio of two devices differs from op to op.
        seed: Seed of everything random.
        speed_spread: At least 1: the slowest device is up to its square times slower than the
            fastest.
        topology: How the devices are joined.
        shape: Arguments of the family's own, such as `layers` (see `doppler.graphs.skeleton`).

    Raises:
        ConfigError: If a name is unknown.
        GraphError: If a number is out of range, or the family has no such shape argument.
    """
    kind, joined = _member(Family, family), _member(Topology, topology)
    if num_devices < 1:
        raise GraphError(f"num_devices is at least 1, and it is {num_devices}")
    if not 0 <= ccr < float("inf"):
        raise GraphError(f"ccr is at least 0 and finite, and it is {ccr}")
    if not 0 <= heterogeneity < 1:
        raise GraphError(f"heterogeneity lies in [0, 1), and it is {heterogeneity}")
    if not 1 <= speed_spread < float("inf"):
        raise GraphError(f"speed_spread is at least 1 and finite, and it is {speed_spread}")
    rng = np.random.default_rng([list(Family).index(kind), seed])
    made = _skeleton(kind, num_ops, rng, dict(shape or {}))
    op_ns = _op_times(made, num_devices, heterogeneity, speed_spread, kind in _TILED, rng)
    transfer_ns = ccr * float(op_ns.mean())
    cluster = make_cluster(num_devices, joined, round(LATENCY_SHARE * transfer_ns))
    name = f"{kind.value}_{len(made.kinds)}_ccr{ccr:g}_seed{seed}"
    graph = _graph(name, made, _byte_scale(made, cluster, transfer_ns))
    problem = Problem(graph=graph, cluster=cluster)
    costs = make_costs(problem, tuple(tuple(row) for row in op_ns.tolist()))
    return Instance(problem=problem, costs=costs)


def make_cluster(num_devices: int, topology: Topology, mean_latency_ns: int) -> Cluster:
    """Returns devices of equal description, every pair joined, with that mean latency."""
    devices = tuple(
        Device(name=f"gpu{index}", kind="cuda", parent=f"gpu{index}")
        for index in range(num_devices)
    )
    half = (num_devices + 1) // 2
    pairs = [(a, b) for a in range(num_devices) for b in range(num_devices) if a != b]
    far = [topology is Topology.two_nodes and (a < half) != (b < half) for a, b in pairs]
    near_latency = mean_latency_ns * len(pairs) / max(1, len(pairs) + (FAR_FACTOR - 1) * sum(far))
    links = tuple(
        Link(
            src=devices[a].name,
            dst=devices[b].name,
            latency_ns=round(near_latency * (FAR_FACTOR if is_far else 1)),
            bytes_per_s=BYTES_PER_S // (FAR_FACTOR if is_far else 1),
            buses=_buses(topology, a, b, is_far, half),
        )
        for (a, b), is_far in zip(pairs, far, strict=True)
    )
    return Cluster(name=f"{topology.value}_{num_devices}", devices=devices, links=links)


def _member(kind: Any, value: Any) -> Any:
    if isinstance(value, kind):
        return value
    if value not in kind.__members__:
        label = kind.__name__.lower()
        raise ConfigError(f"{label} {value!r} is unknown; {nearest(str(value), kind.__members__)}")
    return kind[value]


def _skeleton(
    family: Family, num_ops: int, rng: np.random.Generator, shape: dict[str, int]
) -> Skeleton:
    if num_ops < 1:
        raise GraphError(f"num_ops of a generated graph is at least 1, and it is {num_ops}")
    known: tuple[str, ...] = ()
    if family in _RANDOM:
        known = tuple(_RANDOM[family].__kwdefaults__ or ())
    for name in shape:
        if name not in known:
            raise GraphError(
                f"family {family.value!r} has the shape arguments {', '.join(known) or 'none'}, "
                f"and {name!r} is given"
            )
    if family in _RANDOM:
        return _RANDOM[family](num_ops, rng, **shape)
    return _TILED[family](num_ops)


def _op_times(
    made: Skeleton,
    num_devices: int,
    heterogeneity: float,
    speed_spread: float,
    by_kind: bool,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    slowness_D = speed_spread ** rng.uniform(-1.0, 1.0, num_devices)
    low, high = 1.0 - heterogeneity, 1.0 + heterogeneity
    if by_kind:
        kinds = sorted(set(made.kinds))
        factor_KD = rng.uniform(low, high, (len(kinds), num_devices))
        factor_VD = factor_KD[[kinds.index(kind) for kind in made.kinds]]
    else:
        factor_VD = rng.uniform(low, high, (len(made.kinds), num_devices))
    times_VD = np.asarray(made.work)[:, None] * slowness_D * factor_VD
    scaled: NDArray[np.int64] = np.rint(times_VD * (MEAN_OP_NS / times_VD.mean())).astype(np.int64)
    scaled[scaled < 1] = 1
    return scaled


def _byte_scale(made: Skeleton, cluster: Cluster, transfer_ns: float) -> float:
    """Bytes per unit of relative size, so that the mean over edges is `transfer_ns`."""
    if not made.edges:
        return 0.0
    links = cluster.links
    latency_ns, ns_per_byte = LATENCY_SHARE * transfer_ns, 1e9 / BYTES_PER_S
    if links:
        latency_ns = float(np.mean([link.latency_ns for link in links]))
        ns_per_byte = float(np.mean([1e9 / (link.bytes_per_s or BYTES_PER_S) for link in links]))
    mean_size = float(np.mean([made.outputs[src][output] for src, output, _ in made.edges]))
    return max(0.0, transfer_ns - latency_ns) / (ns_per_byte * mean_size)


def _graph(name: str, made: Skeleton, byte_scale: float) -> DataflowGraph:
    ops = tuple(
        Op(kind=kind, name=label, outputs=tuple(round(size * byte_scale) for size in sizes))
        for kind, label, sizes in zip(made.kinds, made.names, made.outputs, strict=True)
    )
    return DataflowGraph(name=name, ops=ops, edges=tuple(Edge(*edge) for edge in made.edges))


def _buses(topology: Topology, src: int, dst: int, is_far: bool, half: int) -> tuple[str, ...]:
    if topology is Topology.wires:
        return (f"{src}_to_{dst}",)
    if topology is Topology.bus:
        return ("bus",)
    ports = (f"out_{src}", f"in_{dst}")
    wire = f"node{int(src >= half)}_to_node{int(dst >= half)}"
    return (ports[0], wire, ports[1]) if is_far else ports
