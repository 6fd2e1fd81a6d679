"""The graph route: mapping templates of one job as plans of one graph, run on this machine."""

from dataclasses import replace

from doppler.api import place, run
from doppler.config import JOBS
from doppler.coordinator.layouts import even_layout
from doppler.coordinator.variants import DRLJob, all_variants
from doppler.core.hardware import Hardware
from doppler.core.layout import Backend
from doppler.jobs import build_job
from doppler.measure import measured_period_ns
from executor.probe import probe
from simulator.costs.roofline import RooflineModel

settings = replace(JOBS["ppo_pendulum"], envs_per_shard=8, horizon=16, chunk=8)
real = build_job(settings, seed=0)
job = DRLJob(
    name=real.name,
    mode=settings.mode,
    steps_per_iteration=real.env_steps_per_iteration,
    build=lambda cut: build_job(replace(settings, fused=cut.fused), seed=0).graph,
    num_shards=settings.num_shards,
    num_trainers=settings.num_trainers,
)
cpu = replace(probe().hardware.processors[0], flop_per_s=10**11, memory_bytes_per_s=10**10)
hardware = Hardware(name="here", processors=(cpu,))
layouts = {2: even_layout(hardware, Backend.core_group, 2)}
variants, _ = all_variants(job, hardware, layouts, RooflineModel().costs)
plans = {variant.name: variant.plan for variant in variants if variant.cut.fused}
problem = next(variant.problem for variant in variants if variant.cut.fused)
plans["annealing"] = place(problem.graph, problem.cluster, planner="annealing", budget=500)
for name, plan in plans.items():
    period_ns = measured_period_ns(run(problem, plan, real.spec, iterations=10))
    print(f"{name}: {real.env_steps_per_iteration * 1e9 / period_ns:,.0f} steps/s")
