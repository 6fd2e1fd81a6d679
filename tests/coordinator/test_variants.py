"""Templates as variants: who shares a GMI, chains that stay on their GPU, equal work."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.coordinator.layouts import even_layout, even_units, max_gmis
from doppler.coordinator.resource_model import Template, templates_for
from doppler.coordinator.variants import (
    AGENT,
    ENVIRONMENT,
    ROLE,
    TRAINER,
    DRLJob,
    Split,
    all_variants,
    make_variant,
    splits,
)
from doppler.core.cluster import Link
from doppler.core.costs import make_costs
from doppler.core.errors import ClusterError, ConfigError, PlanError
from doppler.core.hardware import Hardware, Processor
from doppler.core.job_mode import JobMode
from doppler.core.layout import Backend
from doppler.graphs.builder import GraphBuilder
from doppler.graphs.drl_job import DRLJobShape, build_drl_job
from doppler.graphs.job_rows import OpSize
from simulator.costs.source import UnknownTimeError
from simulator.hardware.catalogue import load_catalogue
from simulator.hardware.machines import named_hardware

OUTPUTS = {
    "rollout": (64, 16),
    "infer": (32, 8),
    "env_step": (16, 8),
    "advantage": (64, 8),
    "collect": (8, 8),
    "grad": (8, 8),
    "reduce": (8, 8),
    "adam": (8,),
    "broadcast": (16,),
}
T = Template


def build(cut):
    shape = DRLJobShape(
        num_shards=cut.num_shards,
        num_trainers=cut.num_trainers,
        fused=cut.fused,
        num_segments=1,
        horizon=4,
        chunk=2,
        epochs=1,
        minibatches=2,
    )
    return build_drl_job("job", shape, lambda kind, at: OpSize(outputs=OUTPUTS[kind]))


def serving_graph(cut):
    """Two steps per shard, without a trainer."""
    builder = GraphBuilder("serving")
    for k in range(cut.num_shards):
        if cut.fused:
            builder.op(f"rollout[{k},0]", "rollout", outputs=[8], group=f"env[{k}]")
            continue
        last = []
        for t in range(2):
            action = builder.op(f"infer[{k},{t}]", "infer", last, [8])
            last = [builder.op(f"env_step[{k},{t}]", "env_step", [action], [8], group=f"env[{k}]")]
    return builder.build()


TRAINING = DRLJob(name="j", mode=JobMode.synchronous, steps_per_iteration=96, build=build)
SERVING = DRLJob(name="s", mode=JobMode.serving, steps_per_iteration=96, build=serving_graph)


def gpus(count, units=128):
    processors = tuple(
        Processor(
            name=f"g{i}",
            kind="gpu",
            model="x",
            num_units=units,
            memory_bytes=10**9,
            copy_engines=1,
        )
        for i in range(count)
    )
    links = tuple(
        Link(src=a.name, dst=b.name, bytes_per_s=10**9, buses=(f"{a.name}>{b.name}",))
        for a in processors
        for b in processors
        if a is not b
    )
    return Hardware(name="h", processors=processors, links=links)


def unit_costs(problem):
    return make_costs(problem, ((100,) * problem.cluster.num_devices,) * problem.graph.num_ops)


def variants_of(job, num_gpus, gmis):
    hardware = gpus(num_gpus)
    layouts = {gmis: even_layout(hardware, Backend.mps, gmis)}
    return all_variants(job, hardware, layouts, unit_costs)


@settings(deadline=None, max_examples=12)
@given(num_gpus=st.integers(1, 3), gmis=st.integers(1, 4), serves=st.booleans())
def test_roles_share_gmis_as_their_template_says(num_gpus, gmis, serves):
    found, refused = variants_of(SERVING if serves else TRAINING, num_gpus, gmis)
    assert not refused
    for variant in found:
        devices = {ENVIRONMENT: set(), AGENT: set(), TRAINER: set()}
        for op, device in zip(variant.graph.ops, variant.plan.placement, strict=True):
            devices[ROLE[op.kind]].add(device)
            if op.kind == "rollout":
                devices[AGENT].add(device)
        env, agent, trainer = devices[ENVIRONMENT], devices[AGENT], devices[TRAINER]
        assert len(env) == num_gpus * variant.split.environments
        assert env | agent | trainer == set(range(num_gpus * gmis))  # nobody is idle
        match variant.template:
            case T.dp_only:
                assert env == agent
                assert serves or trainer == env
            case T.ea_t:
                assert agent == env
                assert not trainer & env
            case T.e_at:
                assert trainer == agent
                assert not agent & env
            case T.mp_dp:
                assert len(agent) == num_gpus < len(env)
            case T.dp_mp:
                assert not env & agent | env & trainer | agent & trainer
        assert variant.cut.fused == (variant.template in (T.dp_only, T.ea_t))


def test_a_chain_stays_on_its_gpu():
    found, _ = variants_of(TRAINING, 2, 3)
    for variant in found:
        parent = [device.parent for device in variant.problem.cluster.devices]
        gpu = {
            op.name: parent[device]
            for op, device in zip(variant.graph.ops, variant.plan.placement, strict=True)
        }
        for k in range(variant.cut.num_shards):
            names = (f"rollout[{k},0]", f"rollout[{k},1]")
            if not variant.cut.fused:
                names = (f"env_step[{k},0]", f"infer[{k},0]", f"env_step[{k},1]")
            assert {gpu[name] for name in (*names, f"advantage[{k}]")} == {f"g{k % 2}"}
        for m in range(variant.cut.num_trainers):
            assert gpu[f"grad[0,1,{m}]"] == f"g{m % 2}"


def test_splits_are_all_and_only_those_of_the_template():
    for gmis, mode in itertools.product(range(1, 6), JobMode):
        for template in templates_for(mode):
            found = list(splits(template, gmis, mode))
            assert all(split.total == gmis for split in found)
            assert len(set(found)) == len(found)
    assert list(splits(T.dp_mp, 4, JobMode.synchronous)) == [
        Split(1, 1, 2),
        Split(1, 2, 1),
        Split(2, 1, 1),
    ]
    assert list(splits(T.dp_mp, 3, JobMode.serving)) == [Split(1, 2), Split(2, 1)]
    assert list(splits(T.mp_dp, 3, JobMode.serving)) == [Split(2, 1)]
    assert list(splits(T.mp_dp, 2, JobMode.serving)) == []
    assert list(splits(T.ea_t, 3, JobMode.synchronous)) == [Split(1, 0, 2), Split(2, 0, 1)]
    assert list(splits(T.e_at, 3, JobMode.serving)) == []


def test_a_split_that_does_not_fit_the_layout_is_refused():
    hardware = gpus(1)
    layout = even_layout(hardware, Backend.mps, 2)
    with pytest.raises(PlanError, match="maps 3 GMIs per processor, and 'g0'"):
        make_variant(T.ea_t, Split(2, 0, 1), TRAINING, hardware, layout, unit_costs)
    mig = even_layout(hardware, Backend.mig, 2)  # slices of one GPU have no link
    found, refused = all_variants(TRAINING, hardware, {2: mig}, unit_costs)
    assert found == []
    assert len(refused) == 3
    assert all("link" in refusal.reason for refusal in refused)
    assert {refusal.template for refusal in refused} == {T.dp_only, T.ea_t, T.e_at}


def test_only_what_makes_a_variant_impossible_is_caught():
    hardware = gpus(1)
    layouts = {1: even_layout(hardware, Backend.mps, 1)}

    def unknown(problem):
        raise UnknownTimeError("no time of 'rollout'")

    found, refused = all_variants(TRAINING, hardware, layouts, unknown)
    assert found == []
    assert [refusal.reason for refusal in refused] == ["no time of 'rollout'"]

    def broken(problem):
        raise ConfigError("a setting is wrong")

    with pytest.raises(ConfigError, match="a setting is wrong"):
        all_variants(TRAINING, hardware, layouts, broken)


def test_even_layouts_round_to_what_the_back_end_gives():
    hardware = gpus(2, units=132)
    layout = even_layout(hardware, Backend.green_context, 3)
    assert [part.units for part in layout.slices] == [40] * 6
    assert [part.units for part in even_layout(hardware, Backend.mps, 3).slices] == [44] * 6
    odd = even_layout(gpus(1, units=129), Backend.mps, 3)  # MPS has no step of its own here
    assert [part.units for part in odd.slices] == [43] * 3
    assert layout.apply(hardware).num_devices == 6
    assert max_gmis(hardware.processors[0], Backend.green_context) == 16
    assert max_gmis(hardware.processors[0], Backend.mig) == 7
    assert max_gmis(hardware.processors[0], Backend.mps) == 48
    assert max_gmis(hardware.processors[0], Backend.whole) == 1
    with pytest.raises(ClusterError, match="into 1 to 7 GMIs by mig, and 8"):
        even_layout(hardware, Backend.mig, 8)
    with pytest.raises(ClusterError, match="cuts a cpu, and hardware 'h' has none"):
        even_layout(hardware, Backend.core_group, 1)


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(("dgx_a100", "dgx_h100", "dgx1_v100")),
    backend=st.sampled_from((Backend.mps, Backend.green_context, Backend.mig)),
    gmis=st.integers(1, 50),
)
def test_even_layouts_keep_to_the_rules_of_known_machines(name, backend, gmis):
    hardware = named_hardware(load_catalogue(), name)
    processor = next(p for p in hardware.processors if p.kind == "gpu")
    if even_units(processor, backend, gmis) == 0:
        with pytest.raises(ClusterError, match="GMIs by"):
            even_layout(hardware, backend, gmis)
        return
    assert gmis <= max_gmis(processor, backend)
    cluster = even_layout(hardware, backend, gmis).apply(hardware)  # refuses what breaks a rule
    num_gpus = sum(processor.kind == "gpu" for processor in hardware.processors)
    assert cluster.num_devices == gmis * num_gpus


def test_even_mig_layouts_take_the_largest_profile_that_fits():
    processor = next(
        p for p in named_hardware(load_catalogue(), "dgx_a100").processors if p.kind == "gpu"
    )
    # NVIDIA MIG User Guide, A100: 7g has 98 multiprocessors, 3g 42, 2g 28, 1g 14.
    found = [even_units(processor, Backend.mig, gmis) for gmis in range(1, 9)]
    assert found == [98, 42, 28, 14, 14, 14, 14, 0]
    assert even_units(processor, Backend.green_context, 3) % 2 == 0  # Ampere: multiples of 2
    assert even_units(processor, Backend.green_context, 3) == 36
