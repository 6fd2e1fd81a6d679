"""The problems of the suite, by name; `doppler.instances.make` solves them and writes the files."""

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import Costs, make_costs
from doppler.core.problem import Objective, Problem
from doppler.graphs.builder import GraphBuilder
from doppler.graphs.drl_job import DRLJobShape, build_drl_job
from doppler.graphs.families import generate
from doppler.graphs.ffnn import ffnn
from doppler.graphs.job_rows import OpSize
from doppler.graphs.matmul_chain import matmul_chain
from doppler.graphs.stg import read_stg
from doppler.graphs.wfcommons import parse_wfcommons
from simulator.costs.roofline import RooflineModel

STG_FOLDER = Path("tests/planners/stg")
NS_PER_STG_UNIT = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A problem of the suite before it is solved.

    Attributes:
        about: What it is.
        problem, costs: The problem.
        optimum_ns: A published optimum, or None.
        holds: Holds of a plan by hand with `placement` and equal priorities, where that is known.
        placement: See `holds`; empty = none by hand.
    """

    about: str
    problem: Problem
    costs: Costs
    optimum_ns: int | None = None
    placement: tuple[int, ...] = ()
    holds: tuple[tuple[int, int], ...] = ()


def _chain_mm() -> Definition:
    problem = Problem(graph=matmul_chain(4_000).graph, cluster=_gpus(4))
    about = (
        "(A B) + (C (D E)) of 4000 x 4000 matrices in shards, on 4 GPUs of one switch; roofline."
    )
    return Definition(about=about, problem=problem, costs=RooflineModel().costs(problem))


def _ffnn() -> Definition:
    problem = Problem(graph=ffnn().graph, cluster=_gpus(4))
    about = "Forward pass of a feed-forward network in shards, on 4 GPUs of one switch; roofline."
    return Definition(about=about, problem=problem, costs=RooflineModel().costs(problem))


def _ppo() -> Definition:
    """Times in the proportions of PPO on Ant, on 2 cores of one host that slow each other down."""
    shape = DRLJobShape(num_shards=6, horizon=16, chunk=8, num_trainers=2, epochs=2, minibatches=2)
    outputs = {
        "rollout": (2_000_000, 4_096),
        "advantage": (2_000_000, 64),
        "collect": (64, 64),
        "grad": (64, 64, 200_000),
        "reduce": (64, 100_000),
        "adam": (100_000,),
        "broadcast": (200_000,),
    }
    times_us = {"rollout": 9_000, "advantage": 400, "grad": 5_000, "adam": 150}

    def size_of(kind: str, at: Any) -> OpSize:
        return OpSize(outputs=outputs[kind], state_bytes=1_000_000)

    graph = build_drl_job("ppo_fused", shape, size_of)
    devices = tuple(
        Device(name=f"core{index}", kind="cpu", parent="host", share=0.5, copy_engines=0)
        for index in range(2)
    )
    links = tuple(
        Link(src=a.name, dst=b.name, latency_ns=20_000)
        for a in devices
        for b in devices
        if a is not b
    )
    cluster = Cluster(name="two_cores", devices=devices, links=links)
    problem = Problem(graph=graph, cluster=cluster, objective=Objective.period)
    costs = make_costs(
        problem,
        tuple((0 if op.is_input else 1_000 * times_us.get(op.kind, 80),) * 2 for op in graph.ops),
        tuple(120 if op.kind == "rollout" else 40 for op in graph.ops),
        (15_000, 15_000),
    )
    about = "A PPO job with fused rollouts, loop-carried, on 2 cores of one host with interference."
    return Definition(about=about, problem=problem, costs=costs)


def _actors() -> Definition:
    """Three actors act on weights two iterations old; a learner reads all of them."""
    builder = GraphBuilder("actors_two_behind", window=4)
    acts = [
        builder.op(f"act{index}", "rollout", outputs=[400_000], group=f"env{index}")
        for index in range(3)
    ]
    learn = builder.op("learn", "update", acts, [800_000], group="weights")
    for act in acts:
        builder.loop(learn, act, 2)
    for index in range(3):
        builder.group(f"env{index}", 3_000_000)
    builder.group("weights", 2_000_000)
    devices = tuple(
        Device(name=name, kind="cuda", parent=name, memory_bytes=24_000_000)
        for name in ("gpu0", "gpu1", "gpu2")
    )
    problem = Problem(
        graph=builder.build(),
        cluster=_joined("three_gpus", devices, 5_000, 10**10),
        objective=Objective.period,
    )
    times = {"rollout": (900_000, 900_000, 600_000), "update": (500_000, 700_000, 400_000)}
    costs = make_costs(problem, tuple(times[op.kind] for op in problem.graph.ops))
    about = "Actors and a learner, weights two iterations old, on unequal GPUs with little memory."
    return Definition(about=about, problem=problem, costs=costs)


def _join(transfer: int) -> Definition:
    """The join case: deciding each op by its own earliest finish can not see the join's bill."""
    builder = GraphBuilder(f"join_transfer_{transfer}")
    sources = [builder.op(f"source{index}", "task", outputs=[transfer]) for index in range(8)]
    builder.op("join", "task", sources)
    problem = Problem(graph=builder.build(), cluster=_units(4))
    costs = make_costs(problem, ((1,) * 4,) * problem.graph.num_ops)
    about = (
        f"8 unit sources and their join on 4 equal devices, a transfer takes {transfer}: the best "
        f"plan is one device, which no order with earliest-finish placement finds."
    )
    return Definition(about=about, problem=problem, costs=costs, placement=(0,) * 9)


def _hold() -> Definition:
    """P -> C -> S with C on the device of the long op L: worth waiting for."""
    builder = GraphBuilder("hold")
    first = builder.op("P", "task", outputs=[0])
    second = builder.op("C", "task", [first], [0])
    builder.op("S", "task", [second], [0])
    builder.op("L", "task", outputs=[0])
    problem = Problem(
        graph=builder.build(), cluster=_units(2), pins={"P": "d1", "C": "d0", "S": "d1", "L": "d0"}
    )
    costs = make_costs(problem, ((1, 1), (1, 1), (10, 10), (10, 10)))
    about = "Device 0 should stay idle for a moment: 21 without a hold, 12 with C held before L."
    return Definition(
        about=about, problem=problem, costs=costs, placement=(1, 0, 1, 0), holds=((1, 3),)
    )


def _tight_memory() -> Definition:
    """State of 60 to 110 bytes in devices of 200: few placements fit at all."""
    builder = GraphBuilder("tight_memory")
    x = builder.input("x", 20)
    sizes = (110, 100, 90, 80, 70, 60)
    parts = [
        builder.op(f"part{index}", "task", [x], [10], group=f"state{index}")
        for index in range(len(sizes))
    ]
    for index, size in enumerate(sizes):
        builder.group(f"state{index}", size)
    builder.op("sum", "task", parts, [1])
    devices = tuple(
        Device(name=f"d{index}", kind="cpu", parent=f"d{index}", memory_bytes=memory)
        for index, memory in enumerate((290, 240, 240))
    )
    problem = Problem(graph=builder.build(), cluster=_joined("small", devices, 2, 10**9))
    rng = np.random.default_rng(5)
    times = rng.integers(20, 60, size=(problem.graph.num_ops, 3)).tolist()
    costs = make_costs(
        problem,
        tuple(
            (0, 0, 0) if op.is_input else tuple(row)
            for op, row in zip(problem.graph.ops, times, strict=True)
        ),
    )
    about = "Six groups with state that fills three unequal devices almost to the brim."
    return Definition(about=about, problem=problem, costs=costs)


def _workflow() -> Definition:
    """A mosaic workflow in WfCommons form: project, difference, fit, background, add."""
    rng = np.random.default_rng(11)
    num_images = 8
    tasks: dict[str, dict[str, Any]] = {}
    sizes: dict[str, int] = {}
    runtimes: dict[str, float] = {}

    def add(name: str, kind: str, reads: list[str], size: int, seconds: float) -> str:
        output = f"{name}.out"
        tasks[name] = {
            "id": name, "name": kind, "parents": [], "children": [],
            "inputFiles": reads, "outputFiles": [output],
        }  # fmt: skip
        sizes[output] = size
        runtimes[name] = round(seconds * float(rng.uniform(0.7, 1.3)), 6)
        return output

    raw = [f"image{index}.fits" for index in range(num_images)]
    sizes.update(dict.fromkeys(raw, 4_000_000))
    projected = [
        add(f"project{k}", "project", [raw[k]], 8_000_000, 0.02) for k in range(num_images)
    ]
    pairs = [(k, k + step) for step in (1, 2) for k in range(num_images - step)]
    fits = [
        add(f"difference{a}_{b}", "difference", [projected[a], projected[b]], 20_000, 0.008)
        for a, b in pairs
    ]
    model = add("model", "model", [add("fit", "fit", fits, 50_000, 0.004)], 30_000, 0.006)
    corrected = [
        add(f"background{k}", "background", [projected[k], model], 8_000_000, 0.005)
        for k in range(num_images)
    ]
    mosaic = add("add", "add", corrected, 60_000_000, 0.03)
    add("shrink", "shrink", [mosaic], 2_000_000, 0.01)
    writers = {task["outputFiles"][0]: name for name, task in tasks.items()}
    for name, task in tasks.items():
        for parent in dict.fromkeys(
            writers[file] for file in task["inputFiles"] if file in writers
        ):
            task["parents"].append(parent)
            tasks[parent]["children"].append(name)
    document = {
        "name": "mosaic",
        "schemaVersion": "1.5",
        "workflow": {
            "specification": {
                "tasks": list(tasks.values()),
                "files": [{"id": file, "sizeInBytes": size} for file, size in sizes.items()],
            },
            "execution": {"tasks": [{"id": k, "runtimeInSeconds": v} for k, v in runtimes.items()]},
        },
    }
    imported = parse_wfcommons(json.dumps(document), "mosaic")
    devices = tuple(
        Device(name=f"node{index}", kind="cpu", parent=f"node{index}") for index in range(4)
    )
    problem = Problem(
        graph=imported.graph, cluster=_joined("four_nodes", devices, 100_000, 1_250_000_000)
    )
    about = "A mosaic workflow as WfCommons instances describe them, 4 nodes on 10 Gbit Ethernet."
    return Definition(about=about, problem=problem, costs=imported.costs(problem))


def _stg(file: str, processors: int) -> Definition:
    tasks = read_stg(STG_FOLDER / f"{file}.stg", NS_PER_STG_UNIT)
    problem = Problem(graph=tasks.graph, cluster=_units(processors))
    with (STG_FOLDER / "optima.csv").open(encoding="utf-8") as rows:
        optimum = next(
            int(row["optimal_makespan"])
            for row in csv.DictReader(rows)
            if (row["file"], int(row["processors"])) == (f"{file}.stg", processors)
        )
    about = (
        f"Standard task graph {file} (Kasahara and others, CC0) on {processors} equal processors; "
        f"1 unit is 1 ms."
    )
    return Definition(
        about=about,
        problem=problem,
        costs=tasks.costs(problem),
        optimum_ns=optimum * NS_PER_STG_UNIT,
    )


def _family(family: str, num_ops: int, devices: int, ccr: float, seed: int) -> Definition:
    made = generate(family, num_ops, devices, ccr=ccr, heterogeneity=0.5, seed=seed)
    about = (
        f"Generated {family} graph, {devices} devices with unrelated times (heterogeneity 0.5), "
        f"CCR {ccr:g}, seed {seed}."
    )
    return Definition(about=about, problem=made.problem, costs=made.costs)


DEFINITIONS: dict[str, Callable[[], Definition]] = {
    "actors_two_behind": _actors,
    "chain_mm": _chain_mm,
    "cholesky_ccr1": lambda: _family("cholesky", 120, 4, 1.0, 0),
    "ffnn": _ffnn,
    "fork_join_ccr1": lambda: _family("fork_join", 100, 8, 1.0, 0),
    "hold": _hold,
    "in_tree_ccr10": lambda: _family("in_tree", 100, 8, 10.0, 0),
    "join_transfer_10": lambda: _join(10),
    "join_transfer_90": lambda: _join(90),
    "layered_ccr10": lambda: _family("layered", 100, 8, 10.0, 0),
    "mosaic_workflow": _workflow,
    "ppo_fused": _ppo,
    "stg_100_rand0045_m8": lambda: _stg("100_rand0045", 8),
    "stg_100_rand0117_m4": lambda: _stg("100_rand0117", 4),
    "stg_50_rand0072_m4": lambda: _stg("50_rand0072", 4),
    "tight_memory": _tight_memory,
}


def _units(count: int) -> Cluster:
    """Equal devices; a byte takes a nanosecond, every ordered pair has a wire of its own."""
    names = [f"d{index}" for index in range(count)]
    return Cluster(
        name=f"{count}_equal",
        devices=tuple(Device(name=name, kind="cpu", parent=name) for name in names),
        links=tuple(
            Link(src=a, dst=b, bytes_per_s=10**9, buses=(f"{a}-{b}",))
            for a in names
            for b in names
            if a != b
        ),
    )


def _gpus(count: int) -> Cluster:
    devices = tuple(
        Device(
            name=f"gpu{index}",
            kind="cuda",
            parent=f"gpu{index}",
            memory_bytes=40 * 10**9,
            flop_per_s=15 * 10**12,
            memory_bytes_per_s=900 * 10**9,
            launch_ns=5_000,
        )
        for index in range(count)
    )
    return _joined(f"{count}_gpus", devices, 10_000, 25 * 10**9)


def _joined(name: str, devices: tuple[Device, ...], latency_ns: int, bytes_per_s: int) -> Cluster:
    """Devices on one switch: a transfer holds one end's egress and the other's ingress."""
    return Cluster(
        name=name,
        devices=devices,
        links=tuple(
            Link(
                src=a.name,
                dst=b.name,
                latency_ns=latency_ns,
                bytes_per_s=bytes_per_s,
                buses=(f"{a.name}.out", f"{b.name}.in"),
            )
            for a in devices
            for b in devices
            if a is not b
        ),
    )
