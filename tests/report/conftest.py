"""Small traces for the report's tests, made by the real dispatchers under a plain event loop."""

import heapq
import random
from collections.abc import Callable

import pytest

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.dispatcher import (
    CreditArrived,
    Dispatcher,
    Event,
    OpDone,
    ReturnCredit,
    RunOp,
    SendTensor,
    TensorArrived,
    TensorSent,
)
from doppler.core.graph import DataflowGraph, Edge, EdgeMode, Op
from doppler.core.plan import Plan, make_plan
from doppler.core.problem import Problem
from doppler.core.program import compile_program
from doppler.core.trace import OpSpan, Trace, TransferSpan, sort_spans


def run_plan(
    problem: Problem, plan: Plan, op_ns: list[int], iterations: int, dispatch_ns: int = 0
) -> Trace:
    """Runs the dispatchers in order of time; a transfer never queues for a bus."""
    program = compile_program(problem, plan)
    links = problem.cluster.link_table
    devices = range(problem.cluster.num_devices)
    dispatchers = [Dispatcher(program, device, iterations) for device in devices]
    heap: list[tuple[int, int, int, Event]] = []
    serial = 0
    ready: dict[tuple[int, int], int] = {}
    op_spans: list[OpSpan] = []
    transfers: list[TransferSpan] = []
    requests: dict[tuple[int, int, int, int], int] = {}
    ends: dict[tuple[int, int], int] = {}

    def later(time_ns: int, device: int, event: Event) -> None:
        nonlocal serial
        serial += 1
        heapq.heappush(heap, (time_ns, serial, device, event))

    time_ns = 0
    while True:
        for device in devices:
            commands = dispatchers[device].dispatch()
            for item in dispatchers[device].take_ready():
                ready[item] = time_ns
            for command in commands:
                match command:
                    case RunOp():
                        start = time_ns + dispatch_ns
                        end = start + op_ns[command.op]
                        op, iteration = command.op, command.iteration
                        op_spans.append(
                            OpSpan(
                                op,
                                iteration,
                                device,
                                command.stream,
                                ready[op, iteration],
                                start,
                                end,
                                command.versions,
                            )
                        )
                        ends[op, iteration] = end
                        later(end, device, OpDone(op, iteration))
                    case SendTensor():
                        op, output, iteration = command.op, command.output, command.iteration
                        link = links[device, command.destination]
                        release = time_ns + link.occupancy_ns(problem.graph.ops[op].outputs[output])
                        arrival = release + link.latency_ns
                        requests[op, output, iteration, command.destination] = ends[op, iteration]
                        transfers.append(
                            TransferSpan(
                                op,
                                output,
                                iteration,
                                device,
                                command.destination,
                                ends[op, iteration],
                                time_ns,
                                release,
                                arrival,
                            )
                        )
                        sent = TensorSent(op, output, iteration, command.destination)
                        later(release, device, sent)
                        later(arrival, command.destination, TensorArrived(op, output, iteration))
                    case ReturnCredit():
                        credit = CreditArrived(command.op, command.iteration)
                        later(time_ns, command.destination, credit)
        if not heap:
            break
        time_ns = heap[0][0]
        while heap and heap[0][0] == time_ns:
            _, _, device, event = heapq.heappop(heap)
            dispatchers[device].post(event)
        for device in devices:
            for item in dispatchers[device].take_ready():
                ready[item] = time_ns
    assert all(dispatcher.is_done for dispatcher in dispatchers)
    spans, sorted_transfers = sort_spans(op_spans, transfers)
    return Trace(
        graph_digest=problem.graph.digest,
        cluster_digest=problem.cluster.digest,
        source=plan.source,
        runtime="simpy",
        iterations=iterations,
        op_spans=spans,
        transfers=sorted_transfers,
        peak_bytes=(0,) * problem.cluster.num_devices,
    )


def make_cluster(
    num_devices: int,
    latency_ns: int,
    bytes_per_s: int | None,
    copy_engines: int = 1,
    num_streams: int = 1,
) -> Cluster:
    """A uniform, fully joined cluster; every link has its own bus where it needs one."""
    names = [f"core{index}" for index in range(num_devices)]
    has_bus = bytes_per_s is not None and copy_engines > 0
    return Cluster(
        name="cores",
        devices=tuple(
            Device(
                name=name,
                kind="cpu",
                parent="host",
                copy_engines=copy_engines,
                num_streams=num_streams,
            )
            for name in names
        ),
        links=tuple(
            Link(
                src=src,
                dst=dst,
                latency_ns=latency_ns,
                bytes_per_s=bytes_per_s,
                buses=(f"{src}-{dst}",) if has_bus else (),
            )
            for src in names
            for dst in names
            if src != dst
        ),
    )


def random_case(seed: int) -> tuple[Problem, Plan, Trace]:
    """A random small graph with loops and `latest` edges, a random plan, and its trace."""
    rng = random.Random(seed)
    num_ops, num_devices = rng.randint(1, 7), rng.randint(1, 3)
    ops = tuple(
        Op(kind=rng.choice("abc"), name=f"op{index}", outputs=(rng.randint(0, 9),))
        for index in range(num_ops)
    )
    edges: list[Edge] = []
    for dst in range(num_ops):
        for src in range(num_ops):
            distance = rng.randint(0 if src < dst else 1, 2)
            mode = EdgeMode.latest if rng.random() < 0.2 else EdgeMode.token
            if rng.random() < 0.4:
                edges.append(Edge(src, 0, dst, distance, mode))
    graph = DataflowGraph(name="random", ops=ops, edges=tuple(edges))
    engines = rng.randint(0, 1)
    speed = rng.choice([None, 1_000_000_000])
    cluster = make_cluster(num_devices, rng.randint(0, 5), speed, engines, rng.randint(1, 2))
    problem = Problem(graph=graph, cluster=cluster)
    plan = make_plan(
        problem,
        tuple(rng.randrange(num_devices) for _ in ops),
        tuple(rng.randrange(3) for _ in ops),
        "random",
    )
    op_ns = [rng.randint(0, 9) for _ in ops]
    return problem, plan, run_plan(problem, plan, op_ns, rng.randint(1, 8), rng.randint(0, 2))


def job_case(
    num_shards: int = 6, num_devices: int = 2, seed: int = 0
) -> tuple[Problem, Plan, Trace, Trace]:
    """A job-like graph with a plan and two traces; the second has other durations."""
    rng = random.Random(seed)
    ops: list[Op] = []
    edges: list[Edge] = []
    for shard in range(num_shards):
        ops.append(Op(kind="rollout", name=f"rollout[{shard}]", outputs=(4096,)))
        ops.append(Op(kind="gae", name=f"gae[{shard}]", outputs=(4096,)))
        edges.append(Edge(2 * shard, 0, 2 * shard + 1))
    grads = []
    for shard in range(num_shards):
        grads.append(len(ops))
        ops.append(Op(kind="gradient", name=f"gradient[{shard}]", outputs=(65536,)))
        edges.append(Edge(2 * shard + 1, 0, grads[-1]))
    reduce = len(ops)
    ops.append(Op(kind="reduce", name="reduce", outputs=(65536,)))
    edges += [Edge(grad, 0, reduce) for grad in grads]
    step = len(ops)
    ops.append(Op(kind="optimizer_step", name="optimizer_step", outputs=(65536,)))
    edges.append(Edge(reduce, 0, step))
    edges += [Edge(step, 0, 2 * shard, 1) for shard in range(num_shards)]
    graph = DataflowGraph(name="ppo_like", ops=tuple(ops), edges=tuple(edges))
    cluster = make_cluster(num_devices, 20_000, 2_000_000_000, copy_engines=0)
    problem = Problem(graph=graph, cluster=cluster)
    placement = tuple(
        (int(op.name.split("[")[1][:-1]) if "[" in op.name else 0) % num_devices for op in ops
    )
    plan = make_plan(problem, placement, (0,) * len(ops), "learned")
    base = {
        "rollout": 900_000,
        "gae": 60_000,
        "gradient": 700_000,
        "reduce": 120_000,
        "optimizer_step": 90_000,
    }
    simulated_ns = [base[op.kind] for op in ops]
    measured_ns = [int(value * rng.uniform(0.9, 1.15)) for value in simulated_ns]
    return (
        problem,
        plan,
        run_plan(problem, plan, simulated_ns, 20, 8_000),
        run_plan(problem, plan, measured_ns, 20, 11_000),
    )


@pytest.fixture(scope="session")
def random_cases() -> Callable[[int], tuple[Problem, Plan, Trace]]:
    """The maker of random cases."""
    return random_case


@pytest.fixture(scope="session")
def runner() -> Callable[..., Trace]:
    """The event loop."""
    return run_plan


@pytest.fixture(scope="session")
def clusters() -> Callable[..., Cluster]:
    """The maker of uniform clusters."""
    return make_cluster


@pytest.fixture(scope="session")
def job() -> tuple[Problem, Plan, Trace, Trace]:
    """The job-like case: problem, plan, "simulated" trace, "measured" trace."""
    return job_case()
