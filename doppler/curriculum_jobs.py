"""Sharded tensor programs and PPO jobs on random machines, as lessons for policies.

The machines have direct wires between some pairs of devices and slow shared ones between the
others, and ops are bound by arithmetic or by memory as rates fall; no graph or machine of the
catalogue is among them.
"""

import enum
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import Costs, make_costs
from doppler.core.graph import DataflowGraph
from doppler.core.problem import Objective, Problem
from doppler.graphs.drl_job import DRLJobShape, build_drl_job
from doppler.graphs.ffnn import FFNNShape, ffnn
from doppler.graphs.job_rows import OpSize
from doppler.graphs.llama import LlamaShape, llama_block
from doppler.graphs.matmul_chain import ChainShards, matmul_chain
from doppler.graphs.moe import MoEShape, moe_block

LAUNCH_NS = 5e3
SIZES = (2**11, 2**12, 2**13)


class JobFamily(enum.Enum):
    """The jobs that lessons are made of."""

    matmul_chain = "matmul_chain"
    ffnn = "ffnn"
    moe = "moe"
    llama = "llama"
    ppo = "ppo"


def draw_job(
    num_devices: int,
    heterogeneity: float,
    rng: np.random.Generator,
    families: Sequence[JobFamily] = tuple(JobFamily),
) -> tuple[Problem, Costs]:
    """Returns a job on a machine, with roofline times of random rates.

    Args:
        num_devices: Devices, at least 2.
        heterogeneity: In [0, 1): a kind's speed differs that much from device to device.
        rng: Source of randomness.
        families: Jobs to choose from, each as likely as another.
    """
    graph = _GRAPHS[families[int(rng.integers(len(families)))]](rng)
    cluster = draw_machine(num_devices, rng)
    objective = Objective.period if graph.is_cyclic else Objective.makespan
    problem = Problem(graph=graph, cluster=cluster, objective=objective)
    flop_per_s, bytes_per_s = log_uniform(1e12, 1e14, rng), log_uniform(1e11, 2e12, rng)
    factors: dict[str, np.ndarray] = {}  # type: ignore[type-arg]
    rows = []
    for op in graph.ops:
        if op.kind not in factors:
            factors[op.kind] = rng.uniform(1 - heterogeneity, 1 + heterogeneity, num_devices)
        time_ns = LAUNCH_NS + 1e9 * max(op.flop / flop_per_s, op.bytes_moved / bytes_per_s)
        row = np.zeros(num_devices) if op.is_input else time_ns * factors[op.kind]
        rows.append(tuple(row.astype(np.int64).tolist()))
    return problem, make_costs(problem, tuple(rows))


def draw_machine(num_devices: int, rng: np.random.Generator) -> Cluster:
    """Returns equal devices in groups: direct wires inside, and by chance between groups.

    Direct wires are one or two wide, or share a port per device. Pairs without one talk over
    lanes that every two devices share, up to 20 times slower.
    """
    group = int(rng.choice([1, 2, 4, num_devices]))
    chance = float(rng.choice([0.0, 0.2, 0.5]))
    has_ports = rng.random() < 0.5
    fast = log_uniform(1e10, 3e11, rng)
    slow = fast / log_uniform(1.0, 20.0, rng)
    latency_ns = round(log_uniform(1e3, 3e4, rng))
    links = []
    for a, b in itertools.combinations(range(num_devices), 2):
        is_direct = a // group == b // group or rng.random() < chance
        width = 1 if has_ports else int(rng.integers(1, 3))
        for src, dst in ((a, b), (b, a)):
            if not is_direct:
                buses: tuple[str, ...] = (f"lanes{src // 2}.out", f"lanes{dst // 2}.in")
            elif has_ports:
                buses = (f"port{src}.out", f"port{dst}.in")
            else:
                buses = (f"wire{src}_{dst}",)
            links.append(
                Link(
                    src=f"gpu{src}",
                    dst=f"gpu{dst}",
                    latency_ns=latency_ns * (1 if is_direct else 2),
                    bytes_per_s=round(fast * width if is_direct else slow),
                    buses=buses,
                )
            )
    devices = tuple(
        Device(name=f"gpu{index}", kind="cuda", parent=f"gpu{index}")
        for index in range(num_devices)
    )
    return Cluster(name=f"machine_{num_devices}", devices=devices, links=tuple(links))


def log_uniform(low: float, high: float, rng: np.random.Generator) -> float:
    """Returns a number whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _chain(rng: np.random.Generator) -> DataflowGraph:
    rows, inner, cols, de_inner = (int(value) for value in rng.integers(1, 5, 4))
    shards = ChainShards(rows=rows, inner=inner, cols=cols, de_inner=de_inner)
    return matmul_chain(int(rng.choice(SIZES)), shards).graph


def _ffnn(rng: np.random.Generator) -> DataflowGraph:
    blocks = int(rng.choice([1, 2, 4]))
    shape = FFNNShape(
        batch=int(rng.choice(SIZES)),
        hidden=int(rng.choice(SIZES)),
        batch_blocks=blocks,
        hidden_blocks=int(rng.integers(1, 5)),
        tail_blocks=blocks * int(rng.choice([1, 2])),
    )
    return ffnn(shape).graph


def _moe(rng: np.random.Generator) -> DataflowGraph:
    shape = MoEShape(
        tokens=int(rng.choice(SIZES)),
        hidden=int(rng.choice(SIZES)),
        feed_forward=int(rng.choice(SIZES)) * 2,
        experts=int(rng.integers(2, 9)),
        top_k=int(rng.integers(1, 3)),
        row_blocks=int(rng.integers(2, 9)),
    )
    return moe_block(shape)


def _llama(rng: np.random.Generator) -> DataflowGraph:
    """A gated transformer block in cuts that the published LLaMA graphs do not have."""
    heads = int(rng.choice([12, 24]))
    hidden = heads * int(rng.choice([64, 128]))
    shape = LlamaShape(
        tokens=3 * int(rng.choice([512, 1024, 2048])),
        hidden=hidden,
        heads=heads,
        feed_forward=hidden * int(rng.integers(2, 5)),
        shards=int(rng.choice([2, 3, 6])),
        row_blocks=int(rng.choice([1, 2, 3, 6])),
    )
    return llama_block(shape).graph


def _ppo(rng: np.random.Generator) -> DataflowGraph:
    shape = DRLJobShape(
        num_shards=int(rng.integers(2, 7)),
        horizon=4,
        chunk=int(rng.choice([2, 4])),
        num_trainers=int(rng.integers(1, 5)),
        num_segments=int(rng.integers(1, 3)),
        epochs=int(rng.integers(1, 3)),
        minibatches=int(rng.integers(1, 3)),
    )
    work: dict[str, int] = {}
    outputs = {"grad": (10**5,) * (shape.num_segments + 1)}

    def size_of(kind: str, at: tuple[int, ...]) -> OpSize:
        del at
        flop = work.setdefault(kind, round(log_uniform(1e7, 1e9, rng)))
        return OpSize(outputs=outputs.get(kind, (10**6, 10**4)), flop=flop, state_bytes=10**6)

    return build_drl_job("ppo", shape, size_of)


_GRAPHS: dict[JobFamily, Callable[[np.random.Generator], DataflowGraph]] = {
    JobFamily.matmul_chain: _chain,
    JobFamily.ffnn: _ffnn,
    JobFamily.moe: _moe,
    JobFamily.llama: _llama,
    JobFamily.ppo: _ppo,
}
