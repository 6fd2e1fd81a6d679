"""Small traces for the report's tests, made by the real dispatchers under a plain event loop."""

import heapq
import random

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
from doppler.core.trace import OpSpan, Trace, TransferSpan, half_period, sort_spans
from doppler.report.attribution import attribute, steady_window
from doppler.report.model import (
    ExplorationCost,
    Fact,
    Interval,
    LearningCurve,
    PlannerRow,
    Provenance,
    Ratio,
    RewardPoint,
    Role,
    RunReport,
    Series,
    TimeTable,
)
from doppler.report.simulator_error import kind_errors, op_errors
from doppler.report.timeline import timeline


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


def make_report() -> RunReport:
    """A report with every part filled, from the job-like traces."""
    problem, plan, simulated, measured = job_case()
    rng = random.Random(1)
    names = tuple(device.name for device in problem.cluster.devices)
    period = half_period(measured.iteration_ends_ns())
    base = int(half_period(simulated.iteration_ends_ns()).ns)
    rows = [
        ("learned", Role.learned, 1.0, 1.0, 20_000),
        ("annealing", Role.baseline, 1.02, 1.03, 20_000),
        ("heft", Role.baseline, 1.16, 1.2, 1),
        ("critical_path", Role.baseline, 1.12, 1.15, 1),
        ("round_robin", Role.baseline, 1.4, 1.5, 1),
        ("dp_only", Role.baseline, 1.2, None, 1),
        ("single_device", Role.single_device, 1.9, 1.8, 1),
    ]
    planners = tuple(
        PlannerRow(
            name=name,
            role=role,
            layout="1x2 cores" if role is not Role.single_device else "all cores as one",
            simulated_ns=int(base * simulated_part),
            measured=None
            if measured_part is None
            else Interval(
                value_ns=int(period.ns * measured_part),
                low_ns=int(period.ns * measured_part * 0.985),
                high_ns=int(period.ns * measured_part * 1.02),
                num_windows=12,
            ),
            num_simulations=count,
            seconds=count / 900,
            lower_bound_ns=int(base * 0.97),
        )
        for name, role, simulated_part, measured_part, count in rows
    )

    def falling(name: str, start: float, end: float, noise: float) -> Series:
        xs = tuple(float(index * 20) for index in range(1000))
        ys = tuple(
            end + (start - end) * 0.994**index + rng.gauss(0, noise) for index in range(1000)
        )
        return Series(name=name, xs=xs, ys=ys)

    window = steady_window(measured, problem.graph.window)
    simulated_window = steady_window(simulated, problem.graph.window)
    return RunReport(
        title="PPO on Ant, placed on 2 cores",
        objective="period",
        job="ppo_ant",
        job_facts=(
            Fact("environments", "6 shards of 64, horizon 16"),
            Fact("graph", f"{problem.graph.num_ops} ops, {len(problem.graph.edges)} edges, fused"),
            Fact("policy", "MLP 256-128-64, 60 observations, 8 actions"),
        ),
        cluster="cores_2",
        cluster_facts=(Fact("devices", ", ".join(names)), Fact("links", "shared memory")),
        planners=planners,
        ratios=(
            Ratio(label="learned over best baseline", value=0.971, low=0.955, high=0.99),
            Ratio(label="single device over learned", value=1.8, low=1.75, high=1.86),
        ),
        curves=(
            LearningCurve(
                title="Stage I: imitation of the critical-path teacher",
                x_label="gradient steps",
                y_label="cross-entropy (nats per decision)",
                series=(falling("SEL", 2.1, 0.3, 0.03), falling("PLC", 0.8, 0.2, 0.02)),
            ),
            LearningCurve(
                title="Stage II: reinforcement learning in the simulator",
                x_label="simulations",
                y_label="period (ms)",
                series=(falling("mean", 9.0, 6.6, 0.1), falling("best so far", 7.6, 6.4, 0.0)),
            ),
            LearningCurve(
                title="Stage III: on the running job",
                x_label="iterations",
                y_label="measured period (ms)",
                series=(falling("period", 7.2, 6.6, 0.15),),
            ),
        ),
        simulated=timeline(
            "Simulated, learned plan", problem.graph, problem.cluster, simulated, 10
        ),
        measured=timeline("Measured, learned plan", problem.graph, problem.cluster, measured, 10),
        time_tables=(
            TimeTable(
                title="Simulated, learned plan",
                iterations=simulated_window.iterations,
                devices=attribute(problem, plan, simulated, simulated_window),
            ),
            TimeTable(
                title="Measured, learned plan",
                iterations=window.iterations,
                devices=attribute(problem, plan, measured, window),
            ),
        ),
        kind_errors=kind_errors(problem.graph, simulated, measured),
        op_errors=op_errors(problem.graph, names, simulated, measured),
        reward=tuple(
            RewardPoint(
                iteration=index,
                env_steps=index * 6144,
                mean_return=None if index < 3 else 900 - 850 * 0.97**index + rng.gauss(0, 10),
                reward_per_step=4 - 3.5 * 0.97**index + rng.gauss(0, 0.05),
            )
            for index in range(120)
        ),
        exploration=ExplorationCost(
            iterations=120,
            worse_iterations=14,
            extra_ns=31_000_000,
            learning_seconds=4.2,
            plan_switches=5,
        ),
        provenance=Provenance(
            command="doppler learn job=ppo_ant training.sim_episodes=20000 seed=3",
            seed=3,
            created="2026-02-03T14:05:06",
            git_revision="0123456789abcdef",
            hardware_fingerprint="9f86d081884c7d659a2feaa0c55ad015",
            hardware=(Fact("cores", "2"), Fact("memory", "8.0 GB"), Fact("GPUs", "none found")),
            versions=(Fact("python", "3.11.9"), Fact("torch", "2.13.0")),
        ),
        notes=("Two cores shared with nothing else; frequency scaling was on.",),
    )
