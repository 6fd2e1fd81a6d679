"""The paper's constants on a DGX-A100, for the simulator: hardware, op times, jobs.

From the paper: Rs ~ 10 Ra ~ 5 Rt, Ts ~ 6 Ta ~ 3 Tt, a kernel launch costs 4.5 % more per further
GMI. Not in the paper: how much of a GPU one simulator fills. It is the one free number, set so that
the simulated gain of serving is the paper's mean (2.08); everything else follows. One process can
use at most its role's share R of a GPU, however large the device, so work w of a role takes
t w max(1, R / share).
"""

from dataclasses import dataclass, replace

from doppler.coordinator.layouts import even_layout
from doppler.coordinator.templates import shard_of
from doppler.coordinator.variants import DRLJob, JobCut
from doppler.core.cluster import Cluster, Link
from doppler.core.costs import Costs, make_costs
from doppler.core.graph import DataflowGraph
from doppler.core.hardware import Hardware, Processor
from doppler.core.job_mode import JobMode
from doppler.core.layout import Backend, Layout
from doppler.core.problem import Problem
from doppler.graphs.drl_job import DRLJobShape, build_drl_job
from doppler.graphs.job_rows import OpSize

SIM_FILL = 0.46
FILL = {"environment": SIM_FILL, "agent": SIM_FILL / 10, "trainer": SIM_FILL / 5}
AGENT_NS = 8_000_000
ITERATION_NS = {"environment": 6 * AGENT_NS, "agent": AGENT_NS, "trainer": 2 * AGENT_NS}
LAUNCH_PER_GMI = 0.045
MOST_SEGMENTS = 16
ENVS, HORIZON, EPOCHS, MINIBATCHES = 4096, 16, 4, 2
NVLINK, INFINIBAND, PCIE = 300 * 10**9, 25 * 10**9, 25 * 10**9
GMI_BYTES_PER_S, GMI_LATENCY_NS = 12 * 10**9, 30_000
SMS, MEMORY = 108, 40 << 30


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One of the paper's jobs: floats of a record and of the policy."""

    name: str
    state: int
    action: int
    parameters: int


ANT = Benchmark("AT", 60, 8, 57_288)
BALL = Benchmark("BB", 24, 3, 47_747)
HUMANOID = Benchmark("HM", 108, 21, 144_421)
HAND = Benchmark("SH", 211, 20, 770_324)


def dgx(nodes: int, gpus: int) -> Hardware:
    """Returns nodes of A100s: NVLink within, one InfiniBand card per node between."""
    processors = tuple(
        Processor(
            name=f"n{n}g{g}",
            kind="gpu",
            model="A100-40",
            num_units=SMS,
            memory_bytes=MEMORY,
            copy_engines=3,
        )
        for n in range(nodes)
        for g in range(gpus)
    )
    links = []
    for a in processors:
        for b in processors:
            if a is b:
                continue
            node_a, node_b = a.name.split("g")[0], b.name.split("g")[0]
            near = node_a == node_b
            links.append(
                Link(
                    src=a.name,
                    dst=b.name,
                    latency_ns=2_000 if near else 8_000,
                    bytes_per_s=NVLINK if near else INFINIBAND,
                    buses=(f"{a.name}.out", f"{b.name}.in")
                    if near
                    else (f"{node_a}.nic.out", f"{node_b}.nic.in"),
                )
            )
    return Hardware(name="dgx_a100", processors=processors, links=tuple(links))


@dataclass(frozen=True)
class GmiLayout(Layout):
    """An even layout whose GMIs of one GPU exchange bytes through host memory, as in the paper."""

    def apply(self, hardware: Hardware) -> Cluster:
        """Returns the cluster, links inside a GPU with a bandwidth of their own."""
        cluster = super().apply(hardware)
        links = tuple(
            link
            if link.bytes_per_s is not None
            else replace(
                link,
                latency_ns=GMI_LATENCY_NS,
                bytes_per_s=GMI_BYTES_PER_S,
                buses=(f"{link.src}.pcie.out", f"{link.dst}.pcie.in"),
            )
            for link in cluster.links
        )
        return replace(cluster, links=links)


def paper_layout(hardware: Hardware, gmis: int) -> Layout:
    """Returns `gmis` MPS clients per GPU."""
    layout = even_layout(hardware, Backend.mps, gmis)
    return GmiLayout(name=layout.name, slices=layout.slices)


def with_local_batches(graph: DataflowGraph, cut: JobCut) -> DataflowGraph:
    """Returns the graph in which every trainer reads the experience of its own shards only.

    That is data parallelism as the paper has it; our own jobs shuffle over all shards.
    """
    shards, trainers = cut.num_shards, cut.num_trainers
    edges = []
    for edge in graph.edges:
        src, dst = graph.ops[edge.src], graph.ops[edge.dst]
        if (src.kind, dst.kind, edge.output) == ("advantage", "grad", 0):
            shard, trainer = shard_of(src), shard_of(dst)
            is_own = (
                shard % trainers == trainer if shards >= trainers else trainer % shards == shard
            )
            if not is_own:
                continue
        edges.append(edge)
    return replace(graph, edges=tuple(edges))


def job(bench: Benchmark, mode: JobMode, num_gpus: int) -> DRLJob:
    """Returns a job with `ENVS` environments per GPU."""
    envs = ENVS * num_gpus

    def build(cut: JobCut) -> DataflowGraph:
        shard = envs // cut.num_shards
        states, actions = 4 * bench.state * shard, 4 * bench.action * shard
        record = states + actions + 4 * shard
        steps = HORIZON if cut.fused else 1
        segments = min(cut.num_trainers, MOST_SEGMENTS)
        weights = 4 * bench.parameters
        segment = weights // segments
        outputs = {
            "rollout": (record * steps, states),
            "infer": (record - 4 * shard, actions),
            "env_step": (states, 4 * shard),
            "advantage": (record * HORIZON, 64),
            "collect": (64, 64),
            "grad": (*[segment] * segments, 64),
            "reduce": (segment, 8),
            "adam": (segment,),
            "broadcast": (weights,),
        }
        shape = DRLJobShape(
            num_shards=cut.num_shards,
            horizon=HORIZON,
            chunk=HORIZON,
            fused=cut.fused,
            num_trainers=cut.num_trainers,
            num_segments=segments,
            epochs=EPOCHS,
            minibatches=MINIBATCHES,
            mode=mode,
            staleness=1 if mode is JobMode.asynchronous else 0,
        )
        return with_local_batches(
            build_drl_job(bench.name, shape, lambda kind, at: OpSize(outputs=outputs[kind])), cut
        )

    return DRLJob(
        name=f"{bench.name} {mode.value}",
        mode=mode,
        steps_per_iteration=envs * HORIZON,
        build=build,
    )


def costs_of(problem: Problem) -> Costs:
    """Returns op times by the model of this module."""
    graph, cluster = problem.graph, problem.cluster
    parents = {device.parent for device in cluster.devices}
    counts: dict[str, int] = {}
    for op in graph.ops:
        counts[op.kind] = counts.get(op.kind, 0) + 1
    crowd = 1 + LAUNCH_PER_GMI * (len(cluster.devices) / len(parents) - 1)
    rows = []
    for op in graph.ops:
        row = []
        for device in cluster.devices:
            total = 0.0
            for role in _roles(op.kind):
                work = ITERATION_NS[role] * len(parents) / counts[op.kind]
                total += work * max(1.0, FILL[role] / device.share) * crowd
            row.append(round(total) if total else (0 if op.is_input else 10_000))
        rows.append(tuple(row))
    return make_costs(problem, tuple(rows))


def _roles(kind: str) -> tuple[str, ...]:
    return {
        "rollout": ("environment", "agent"),
        "env_step": ("environment",),
        "infer": ("agent",),
        "grad": ("trainer",),
    }.get(kind, ())
