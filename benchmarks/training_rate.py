"""Stage II episodes per second, gradient steps included, against a step-by-step PyTorch version.

The step-by-step version is the same policy with the same features, timeline and loss: message
passing once per episode, then one SEL and one PLC network call per decision, one scored episode and
one gradient step per episode. Both run on one thread, in turn. Measured are the improved pair (the
default) and the paper's pair at the same sizes (figures with "_paper"). The batch shares the cost
of message passing: the learned planner's default is 32, the default here is 64.

    python benchmarks/training_rate.py [--seconds 4] [--batch 64] [--quick]
"""

import argparse
import math
import time

import numpy as np
import torch
from support.common import finish

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import Costs, make_costs
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.problem import Problem
from doppler.graphs.matmul_chain import ChainShards, matmul_chain
from doppler.policies.build import build_assignment
from doppler.policies.config import PolicyConfig, PolicyKind
from doppler.policies.device_columns import set_columns
from doppler.policies.dual import DualPolicy, policy_inputs
from doppler.policies.place import MASKED, place_logits
from doppler.policies.tables import make_workspace
from doppler.policies.timeline import place, reset, set_mask, set_times
from doppler.training.config import ReinforceConfig, Stage
from doppler.training.elites import EliteBuffer
from doppler.training.learner import Learner, make_optimizer, torch_threads
from doppler.training.reinforce import reinforce_update
from simulator.scorer import CompiledScorer

TARGETS = {"over_stepwise": ">= 100", "over_stepwise_paper": ">= 100", "growth_exponent": "<= 1.1"}
SEED = 0
REFERENCE_SHARDS = ChainShards(rows=6, inner=3, cols=3, de_inner=3)


def cluster(num_devices: int) -> Cluster:
    """Four devices like a P100: egress and ingress wires of 10 GB/s."""
    devices = tuple(
        Device(name=f"gpu{i}", kind="cuda", parent=f"gpu{i}") for i in range(num_devices)
    )
    links = tuple(
        Link(
            src=a.name,
            dst=b.name,
            latency_ns=10_000,
            bytes_per_s=10**10,
            buses=(f"out_{a.name}", f"in_{b.name}"),
        )
        for a in devices
        for b in devices
        if a is not b
    )
    return Cluster(name="four", devices=devices, links=links)


def chain(shards: ChainShards) -> tuple[Problem, Costs]:
    """The matrix chain on four devices with roofline times (9.5 TFLOP/s, 700 GB/s)."""
    graph = matmul_chain(10_000, shards).graph
    problem = Problem(graph=graph, cluster=cluster(4))
    times = [
        0 if op.is_input else 5_000 + int(1e9 * max(op.flop / 9.5e12, op.bytes_moved / 7e11))
        for op in graph.ops
    ]
    return problem, make_costs(problem, tuple((value,) * 4 for value in times))


def layered(num_ops: int, seed: int = SEED) -> tuple[Problem, Costs]:
    """A layered graph of 20 columns, each op with 2 producers: size grows, width does not."""
    rng, width = np.random.default_rng(seed), 20
    ops = tuple(Op(kind="k", name=f"o{i}", outputs=(10**5,)) for i in range(num_ops))
    edges = tuple(
        Edge((op // width - 1) * width + int(src), 0, op)
        for op in range(width, num_ops)
        for src in rng.choice(width, size=2, replace=False)
    )
    problem = Problem(graph=DataflowGraph(name="layered", ops=ops, edges=edges), cluster=cluster(4))
    times = rng.integers(50_000, 150_000, num_ops)
    return problem, make_costs(problem, tuple((int(value),) * 4 for value in times))


class Rate:
    """One problem, one learner, one scorer."""

    def __init__(
        self,
        pair: tuple[Problem, Costs],
        batch: int,
        kind: PolicyKind = PolicyKind.improved,
    ) -> None:
        problem, costs = pair
        self.scorer = CompiledScorer(problem, costs)
        self.assignment = build_assignment(problem, costs)
        config = PolicyConfig(kind=kind)
        self.policy = DualPolicy(config, seed=SEED)
        self.inputs = policy_inputs(self.assignment, config)
        elites = EliteBuffer(self.assignment, 16)
        self.config = ReinforceConfig(batch=batch)
        self.learner = Learner(self.policy, self.inputs, elites, np.random.default_rng(SEED))
        self.learner.begin(Stage.simulation, 1000)

    def update(self) -> None:
        """One fast update: a batch sampled, scored and learned from."""
        reinforce_update(self.learner, self.scorer.score, self.config, 10**7)

    def seconds_per_episode(self, seconds: float) -> float:
        """Median over updates after a warm-up."""
        times: list[float] = []
        end = time.perf_counter() + seconds
        self.update()
        while len(times) < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            self.update()
            times.append((time.perf_counter() - start) / self.config.batch)
        return float(np.median(times))


class Stepwise:
    """The same policy one decision at a time in PyTorch."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self.optimizer = make_optimizer(rate.policy)
        self.rng = np.random.default_rng(SEED + 1)
        self.baseline: float | None = None

    def episode(self) -> None:
        """One episode, scored, and one gradient step."""
        rate, tables = self.rate, self.rate.inputs.tables
        encoded = rate.policy.encode(rate.inputs)
        head = encoded.head
        num_ops, num_devices = tables.work.shape
        columns = head.dynamic.shape[0]
        state = make_workspace(tables, head.output.shape[0], columns)
        reset(tables, state)
        candidates = [op for op in range(num_ops) if state.missing[op] == 0]
        sums = torch.zeros(num_devices, head.placed.shape[1])
        counts = torch.zeros(num_devices)
        log_probs, orders, devices = [], [], []
        for step in range(num_ops):
            logs = torch.log_softmax(encoded.scores[candidates], dim=0)
            pick = self._draw(logs)
            op = candidates.pop(pick)
            choices = set_mask(tables, state, op)
            if choices == 1:
                device = int(state.mask.argmax())
                set_times(tables, state, op, device, device + 1)
                log_probs.append(logs[pick])
            else:
                set_columns(tables, state, op, step, columns)
                y = torch.from_numpy(state.columns[:, :columns].astype(np.float32))[None]
                means = (sums / counts.clamp(min=1.0)[:, None])[None]
                logits = place_logits(head, torch.tensor([op]), y, means)[0]
                mask = torch.from_numpy(state.mask.copy())
                device_logs = torch.log_softmax(logits.masked_fill(~mask, MASKED), dim=0)
                device = self._draw(device_logs)
                log_probs.append(logs[pick] + device_logs[device])
            place(tables, state, op, device)
            here = torch.nn.functional.one_hot(torch.tensor(device), num_devices)
            sums = sums + here[:, None] * head.placed[op]
            counts = counts + here
            orders.append(op)
            devices.append(device)
            for slot in range(tables.out_ptr[op], tables.out_ptr[op + 1]):
                consumer = int(tables.out_dst[slot])
                state.missing[consumer] -= 1
                if state.missing[consumer] == 0:
                    candidates.append(consumer)
        value = self._score(orders, devices)
        before, self.baseline = self.baseline or value, value
        loss = -(before - value) / before * torch.stack(log_probs).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def _score(self, orders: list[int], devices: list[int]) -> float:
        plans = self.rate.assignment.plan_arrays(np.array([orders]), np.array([devices]))
        return float(self.rate.scorer.score(*plans)[0])

    def _draw(self, logs: torch.Tensor) -> int:
        cumulative = np.cumsum(np.exp(logs.detach().numpy()))
        return min(int((cumulative < self.rng.random()).sum()), len(cumulative) - 1)


def ratio_in_pairs(
    rate: Rate, stepwise: Stepwise, blocks: int, seconds: float
) -> tuple[list[float], list[float]]:
    """(episodes/s, ratio) per block: both versions in turn, so that load from others cancels."""
    stepwise.episode()
    rate.update()
    rates, ratios = [], []
    for _ in range(blocks):
        fast: list[float] = []
        slow: list[float] = []
        end = time.perf_counter() + seconds
        while len(fast) < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            rate.update()
            middle = time.perf_counter()
            stepwise.episode()
            fast.append((middle - start) / rate.config.batch)
            slow.append(time.perf_counter() - middle)
        rates.append(1.0 / float(np.median(fast)))
        ratios.append(float(np.median(slow) / np.median(fast)))
    return rates, ratios


def growth(sizes: tuple[int, ...], seconds: float) -> float:
    """Slope of log(seconds per episode) over log(ops), least squares."""
    points = []
    for size in sizes:
        per_episode = Rate(layered(size), batch=8).seconds_per_episode(seconds)
        print(f"{size:6d} ops: {1e3 * per_episode:8.2f} ms per episode (batch 8)")
        points.append((math.log(size), math.log(per_episode)))
    x, y = np.array(points).T
    return float(np.polyfit(x, y, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="per measurement")
    parser.add_argument("--blocks", type=int, default=3, help="pairs of measurements")
    parser.add_argument("--batch", type=int, default=64, help="episodes per update")
    parser.add_argument("--quick", action="store_true", help="sizes up to 2,000 ops")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    with torch_threads(1):
        for kind, suffix in ((PolicyKind.improved, ""), (PolicyKind.paper, "_paper")):
            rate = Rate(chain(REFERENCE_SHARDS), arguments.batch, kind)
            num_ops = rate.assignment.num_ops
            stepwise = Stepwise(rate)
            rates, ratios = ratio_in_pairs(rate, stepwise, arguments.blocks, arguments.seconds)
            print(f"{kind.value}: chain of {num_ops} ops, 4 devices, batch {arguments.batch}")
            print("episodes/s per block:", ", ".join(f"{value:.0f}" for value in rates))
            print("ratio per block:", ", ".join(f"{value:.0f}" for value in ratios))
            figures[f"over_stepwise{suffix}"] = round(float(np.median(ratios)), 1)
            figures[f"over_stepwise{suffix}_min"] = round(min(ratios), 1)
            figures[f"episodes_per_s{suffix}"] = round(float(np.median(rates)), 1)
        sizes = (250, 500, 1000, 2000) if arguments.quick else (500, 1000, 2000, 5000, 10_000)
        exponent = growth(sizes, arguments.seconds / 2)
    figures |= {
        "growth_exponent": round(exponent, 3),
        "num_ops": num_ops,
        "batch": arguments.batch,
    }
    finish("training_rate", figures, TARGETS, seed=SEED)


if __name__ == "__main__":
    main()
