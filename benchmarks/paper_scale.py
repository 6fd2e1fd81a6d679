"""GMI-DRL's tables in simulation: a DGX-A100 with the paper's constants, beside its figures.

The constants and the one free number are told in `support/paper_machine.py`. Printed: the gain over
one process per GPU of every mode with the best template and number of GMIs (at equal global batch);
scaling over nodes (table 5); compositions of the gradient reduction (table 6); algorithm 1 against
the exhaustive search; and what placing the ops freely gains over the best template (`--planner`).

Usage: python benchmarks/paper_scale.py [--planner learned] [--budget N] [--gmis 3,4,5,6,7,8]
"""

import argparse
import dataclasses
import itertools
import time

import numpy as np
from support.common import finish
from support.paper_machine import (
    ANT,
    BALL,
    ENVS,
    HAND,
    HORIZON,
    HUMANOID,
    PCIE,
    Benchmark,
    costs_of,
    dgx,
    job,
    paper_layout,
)

from doppler.coordinator.collective_model import hybrid_ns, ip_only_ns, rp_only_ns
from doppler.coordinator.reading import Reading
from doppler.coordinator.search import (
    Sample,
    SearchSpace,
    algorithm_1,
    exhaustive,
    whole_system,
)
from doppler.coordinator.variants import Variant, all_variants
from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.job_mode import JobMode
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.graphs.collective_ops import FORWARD_KIND, REDUCE_KIND, rank_compositions
from doppler.graphs.collectives import candidates
from doppler.planners.base import Budget
from doppler.planners.learned import LearnedPlanner
from doppler.planners.registry import get_planner
from doppler.training.config import Start
from simulator.scorer import CompiledScorer

SEED = 0
PAPER_GAIN = {JobMode.serving: 2.08, JobMode.synchronous: 1.69, JobMode.asynchronous: 1.88}
PAPER_SCALING = {
    ("BB", 1): (1.84, 3.28, 7.16),
    ("HM", 1): (1.71, 2.87, 6.67),
    ("BB", 2): (1.83, 3.18, 7.04),
    ("HM", 2): (1.61, 2.72, 6.44),
}
PAPER_COMPOSITION = {
    ("AT", 2): 1.0038,
    ("HM", 2): 1.0249,
    ("SH", 2): 1.0020,
    ("AT", 4): 1.0074,
    ("HM", 4): 1.0233,
    ("SH", 4): 1.0007,
}
GRADIENT_STEPS = {"AT": 8, "HM": 20, "SH": 20}
SEARCH_GPUS = 4
SHARDS, TRAINERS = 8, 4
NVLINK_RING = 300 * 10**9


def rate(variant: Variant) -> float:
    """Returns simulated environment steps per second."""
    period_ns = CompiledScorer(variant.problem, costs_of(variant.problem)).score_plans(
        [variant.plan]
    )[0]
    return 1e9 / int(period_ns)  # iterations; all variants of a job have equal steps in one


def best_variant(
    bench: Benchmark, mode: JobMode, gpus: int, gmis: list[int]
) -> tuple[Variant, float]:
    """Returns the fastest variant and its iterations per second."""
    hardware = dgx(1, gpus)
    layouts = {g: paper_layout(hardware, g) for g in gmis}
    found, _ = all_variants(job(bench, mode, gpus), hardware, layouts, costs_of)
    rates = [rate(variant) for variant in found]
    best = int(np.argmax(rates))
    return found[best], rates[best]


def gains(figures: dict[str, float]) -> None:
    """Prints the gain of each mode over one process per GPU, 4 GPUs, Ant and Humanoid."""
    print("\nGain over one process per GPU (4 GPUs, 1 to 4 GMIs each, equal global batch)")
    for mode, paper in PAPER_GAIN.items():
        values = []
        for bench in (ANT, HUMANOID):
            _, alone = best_variant(bench, mode, 4, [1])
            variant, best = best_variant(bench, mode, 4, [1, 2, 3, 4])
            values.append(best / alone)
            print(f"  {mode.value:13s} {bench.name}: {best / alone:.2f} with {variant.name}")
        figures[f"gain_{mode.value}"] = float(np.mean(values))
        print(f"  {mode.value:13s} mean {np.mean(values):.2f}, paper {paper:.2f}")
    print(
        "  Training gains more here than in the paper: memory bandwidth, caches and the CPU that\n"
        "  all GMIs share are not modelled, nor what a library costs. The paper's own model\n"
        "  over-predicts as well (5.5x for 3.9x measured)."
    )


def scaling(figures: dict[str, float]) -> None:
    """Prints the speed-up over one node at equal work per GPU, DP-only with 3 GMIs per GPU."""
    print("\nSpeed-up over 1 node, 2 / 4 / 8 nodes (table 5)")
    for bench in (BALL, HUMANOID):
        for gpus in (1, 2):
            rates = []
            for nodes in (1, 2, 4, 8):
                hardware = dgx(nodes, gpus)
                layouts = {3: paper_layout(hardware, 3)}
                this = job(bench, JobMode.synchronous, nodes * gpus)
                found, _ = all_variants(this, hardware, layouts, costs_of)
                variant = next(v for v in found if v.template.value == "dp_only")
                rates.append(nodes * rate(variant))
            ours = [value / rates[0] for value in rates[1:]]
            paper = PAPER_SCALING[bench.name, gpus]
            print(
                f"  {bench.name} {gpus} GPU per node: "
                + " / ".join(f"{o:.2f} (paper {p:.2f})" for o, p in zip(ours, paper, strict=True))
            )
            figures[f"scaling_{bench.name}_{gpus}"] = ours[-1] / 8
    print(
        "  Nearer to linear here: the network has its full rate, no reduction passes through the\n"
        "  host, and no node is late. That 8 nodes are more efficient than 4 is not reproduced."
    )


def gmi_cluster(gpus: int, gmis: int) -> Cluster:
    """Returns GMIs that NCCL joins between GPUs only, and the host; the last device is the host."""
    devices = [
        Device(name=f"g{g}.{i}", kind="mps", parent=f"g{g}", share=1 / gmis, copy_engines=1)
        for g in range(gpus)
        for i in range(gmis)
    ]
    host = Device(name="host", kind="cpu", parent="cpu", copy_engines=1)
    links = [
        Link(
            src=a.name,
            dst=b.name,
            latency_ns=5_000,
            bytes_per_s=NVLINK_RING,
            buses=(f"{a.parent}.out", f"{b.parent}.in"),
        )
        for a in devices
        for b in devices
        if a.parent != b.parent
    ]
    for device in devices:
        for src, dst in ((device.name, "host"), ("host", device.name)):
            up = dst == "host"
            links.append(
                Link(
                    src=src,
                    dst=dst,
                    latency_ns=10_000,
                    bytes_per_s=PCIE,
                    buses=(f"{device.parent}.pcie.{'up' if up else 'down'}",),
                )
            )
    return Cluster(name="gmis", devices=(*devices, host), links=tuple(links))


def reduce_time(problem: Problem, plan: Plan) -> int:
    """Returns the simulated time of one reduction: kernels cost 8 us, bytes 1 or 0.1 TB/s."""
    rows = []
    for op in problem.graph.ops:
        if op.kind not in (REDUCE_KIND, FORWARD_KIND):
            rows.append((0,) * problem.cluster.num_devices)
            continue
        rows.append(
            tuple(
                8_000 + op.bytes_moved * 10**9 // (10**11 if d.kind == "cpu" else 10**12)
                for d in problem.cluster.devices
            )
        )
    costs = make_costs(problem, tuple(rows))
    return int(CompiledScorer(problem, costs).score_plans([plan])[0])


def compositions(figures: dict[str, float]) -> None:
    """Prints the time of every composition and what the best one gains (table 6)."""
    print("\nCompositions of the gradient reduction, 3 GMIs per GPU (table 6), us")
    for gpus in (2, 4):
        cluster = gmi_cluster(gpus, 3)
        groups = [list(range(3 * g, 3 * g + 3)) for g in range(gpus)]
        for bench in (ANT, HUMANOID, HAND):
            ranked = rank_compositions(
                candidates(groups, num_hosts=1),
                cluster,
                list(range(3 * gpus)),
                4 * bench.parameters,
                reduce_time,
                hosts=[3 * gpus],
            )
            times = {c.schedule.name: c.time_ns for c in ranked if c.time_ns is not None}
            name, best_ns = next(iter(times.items()))
            host_ns = times["through_host"]
            _, iterations = best_variant(bench, JobMode.synchronous, gpus, [3])
            steps_ns = GRADIENT_STEPS[bench.name]
            gain = (1e9 / iterations + steps_ns * host_ns) / (1e9 / iterations + steps_ns * best_ns)
            row = ", ".join(f"{n} {t / 1000:.0f}" for n, t in times.items())
            print(
                f"  {bench.name} {gpus} GPUs: {row}; best {name}, job gains {gain - 1:.2%} "
                f"(paper {PAPER_COMPOSITION[bench.name, gpus] - 1:.2%})"
            )
            figures[f"composition_gain_{bench.name}_{gpus}"] = gain
            size = 4 * bench.parameters
            printed = [
                hybrid_ns(gpus, 3, k, size, PCIE, NVLINK_RING, Reading.printed) for k in range(4)
            ]
            rp = rp_only_ns(gpus, 3, size, NVLINK_RING) if gpus >= 3 else None
            print(
                "      printed projection, us: IP-only "
                f"{float(ip_only_ns(gpus, 3, size, PCIE)) / 1000:.0f}, RP-only "
                f"{'not allowed (m > n)' if rp is None else f'{float(rp) / 1000:.0f}'}, "
                "hybrid(0..3) " + ", ".join(f"{float(value) / 1000:.0f}" for value in printed)
            )
    print(
        "  AT and HM are of the paper's size. SH gains more here: its 3 MiB make the host's\n"
        "  additions dear; the paper's 4-GPU row has k = 0, which is the baseline itself, so its\n"
        "  0.07 % is noise. The printed projections leave latency out and fall monotonically in k."
    )


def searches(figures: dict[str, float]) -> None:
    """Prints what algorithm 1 finds of what the exhaustive search finds, Ant on four GPUs.

    One GPU is profiled; the rate of four is its rate, slowed by the gradient reductions.
    """
    calls: dict[tuple[int, int], Sample] = {}

    def profile(gmis: int, envs: int) -> Sample | None:
        if (gmis, envs) not in calls:
            hardware = dgx(1, 1)
            layouts = {gmis: paper_layout(hardware, gmis)}
            this = job(ANT, JobMode.synchronous, 1)
            found, _ = all_variants(this, hardware, layouts, costs_of)
            variant = next(v for v in found if v.template.value == "dp_only")
            # Assumed: 1 ms per simulator step at least, and contention beyond 16,384 environments
            # (where the paper's figure 2 has Anymal lose throughput).
            period_ns = 1e9 / rate(variant)
            scale = gmis * envs / ENVS
            floor_ns = 1e6 * HORIZON
            crowded = 1 + max(0.0, gmis * envs / 16384 - 1) / 3
            rate_s = gmis * envs * HORIZON / ((floor_ns + period_ns * scale * crowded) / 1e9)
            calls[gmis, envs] = Sample(gmis, envs, rate_s, (2 << 30) + envs * (500 << 10))
        sample = calls[gmis, envs]
        return None if sample.memory_bytes * gmis > 40 << 30 else sample

    def estimate(sample: Sample) -> float:
        iteration_ns = sample.gmis * sample.envs * HORIZON * 1e9 / sample.steps_per_s
        reduction_ns = ip_only_ns(SEARCH_GPUS, sample.gmis, 4 * ANT.parameters, PCIE)
        spent_ns = round(GRADIENT_STEPS[ANT.name] * reduction_ns)
        return whole_system(sample.steps_per_s, SEARCH_GPUS, round(iteration_ns), spent_ns)

    space = SearchSpace(gpu_memory_bytes=40 << 30)
    best = exhaustive(profile, estimate, space)
    assert best.best is not None
    print(f"\nAlgorithm 1 against the exhaustive search (Ant, {SEARCH_GPUS} GPUs)")
    for label, found in (
        ("corrected", algorithm_1(profile, estimate, space)),
        ("as_printed", algorithm_1(profile, estimate, space, Reading.printed)),
        ("exhaustive", best),
    ):
        top = found.best
        if top is None or top.total is None or best.best.total is None:
            print(f"  {label}: nothing found")
            continue
        distance = 1 - top.total / best.best.total
        print(
            f"  {label:10s}: {top.gmis} GMIs x {top.envs} envs, {top.total:,.0f} steps/s, "
            f"{found.num_profiles} profiles, {distance:.1%} below the optimum"
        )
        figures[f"algorithm_1_{label}_distance"] = distance
        figures[f"algorithm_1_{label}_profiles"] = found.num_profiles


def free_placement(planner: str, budget: int, gmis: list[int], figures: dict[str, float]) -> None:
    """Prints what a planner gains over the best template, one GPU, Ant.

    Cut as the templates want it, every GMI has the same work, and a synchronous job is symmetric.
    Cut into `SHARDS` shards and `TRAINERS` parts whatever the layout, as our own jobs are, it does
    not divide evenly. The planner places the three best variants. Learned begins from the plan of
    the variant, as in the coordinator, so it is never behind; others do not see it, and a gain
    below 1 says that they found nothing as good within their budget.
    """
    print(f"\n{planner} over the best template (one GPU, Ant, {budget} simulations per variant)")
    rows = [(JobMode.synchronous, None, None), *((mode, SHARDS, TRAINERS) for mode in JobMode)]
    for (mode, shards, trainers), g in itertools.product(rows, gmis):
        layouts = {g: paper_layout(dgx(1, 1), g)}
        this = dataclasses.replace(job(ANT, mode, 1), num_shards=shards, num_trainers=trainers)
        found, _ = all_variants(this, dgx(1, 1), layouts, costs_of)
        values = sorted(((1e9 / rate(v), v) for v in found), key=lambda row: row[0])
        start = time.perf_counter()
        planned = []
        for _, variant in values[:3]:
            scorer = CompiledScorer(variant.problem, costs_of(variant.problem))
            make = (
                LearnedPlanner(start=Start.pretrained, first_plans=(variant.plan,))
                if planner == "learned"
                else get_planner(planner)
            )
            plan = make(variant.problem, scorer, Budget(budget), np.random.default_rng(SEED))
            planned.append(int(scorer.score_plans([plan])[0]))
        gain = values[0][0] / min(planned)
        cut = "as the template" if shards is None else f"{shards} shards, {trainers} parts"
        print(
            f"  {mode.value:12s} {cut:19s} {g} GMIs: best template {values[0][1].name:14s} gain "
            f"{gain:.3f}  ({time.perf_counter() - start:.1f} s)",
            flush=True,
        )
        kind = "even" if shards is None else mode.value
        figures[f"planned_over_template_{kind}_{g}"] = gain


def main() -> None:
    """Prints every table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--planner", default="learned")
    parser.add_argument("--budget", type=int, default=500)
    parser.add_argument("--gmis", default="3,4,5,6,7,8")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    gains(figures)
    scaling(figures)
    compositions(figures)
    searches(figures)
    gmis = [int(text) for text in arguments.gmis.split(",") if text]
    free_placement(arguments.planner, arguments.budget, gmis, figures)
    finish("paper_scale", figures, {}, seed=SEED)


if __name__ == "__main__":
    main()
