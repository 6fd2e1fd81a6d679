"""The executor on a small stateful job: equal results however it is placed, and honest traces."""

import os
import random

import numpy as np
import pytest
from core_clusters import plan_of, problem_of
from toy_job import random_graph, toy_graph

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.errors import ClusterError, ConfigError, ExecutionError, FormatError, PlanError
from doppler.core.graph import EdgeMode
from doppler.core.plan import make_plan
from doppler.core.problem import Problem
from doppler.core.validate import check_trace
from executor.checkpoint import Checkpoint
from executor.job_spec import JobSpec
from executor.launch.local import check_affinity
from executor.messages import ProfileTask
from executor.options import ExecutorOptions
from executor.runtime import CoreExecutor
from simulator.runtime import SimPyRuntime

pytestmark = pytest.mark.timeout(60)

SPEC = JobSpec(path="toy_job:ToyJob")
TOLERANCE_NS = 2_000_000_000  # a loaded machine; what came before what has no tolerance
DEBUG = ExecutorOptions(mark_unwritten=True)
ALONE = (0, 0, 0, 0, 0, 0, 0, 0)
SPLIT = (0, 0, 1, 1, 0, 1, 0, 1)
SWAPPED = (0, 1, 1, 0, 1, 0, 1, 0)


def outputs(executor, problem):
    """Everything that can be observed of the job."""
    state = {
        f"{name}/{key}": value
        for name, arrays in executor.export_groups().items()
        for key, value in arrays.items()
    }
    for op, spec in enumerate(problem.graph.ops):
        for output in range(len(spec.outputs)):
            state[f"{spec.name}:{output}"] = executor.read_output(op, output)
    return state


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for key in first:
        assert np.array_equal(first[key], second[key]), key


def run_in(problem, *segments):
    with CoreExecutor(SPEC, problem, DEBUG) as executor:
        for placement, iterations in segments:
            plan = plan_of(problem, *placement)
            check_trace(problem, plan, executor.run(problem, plan, iterations), TOLERANCE_NS)
        return outputs(executor, problem)


@pytest.fixture(scope="module")
def problem():
    return problem_of(toy_graph())


@pytest.fixture(scope="module")
def reference(problem):
    """Seven iterations on one device in one segment."""
    return run_in(problem, (ALONE, 7))


def test_values_are_numbers(reference):
    # 0xFF marks what was never written: as a float it is NaN.
    for key, value in reference.items():
        assert np.isfinite(value.view(np.float64)).all(), key


@pytest.mark.parametrize(
    "segments",
    [
        [(SPLIT, 7)],
        [(SWAPPED, 7)],
        [(SPLIT, 3), (SWAPPED, 4)],
        [(ALONE, 1), (SPLIT, 1), (SWAPPED, 1), (ALONE, 1), (SPLIT, 3)],
    ],
)
def test_any_placement_and_any_switch_give_equal_bits(problem, reference, segments):
    assert_equal(run_in(problem, *segments), reference)


def test_streams_and_more_devices_give_equal_bits(reference):
    assert_equal(run_in(problem_of(toy_graph(), num_streams=3), (SPLIT, 7)), reference)
    spread = (0, 0, 1, 2, 1, 2, 0, 1)
    assert_equal(run_in(problem_of(toy_graph(), num_devices=3), (spread, 7)), reference)


@pytest.mark.parametrize(("seed", "window"), [(0, 1), (1, 2), (2, 3), (3, 3)])
def test_random_graphs_under_random_plans_give_equal_bits(seed, window):
    graph = random_graph(seed, window=window)
    rng = random.Random(seed)
    alone, spread = problem_of(graph, num_devices=1), problem_of(graph, num_devices=3)
    lengths = [rng.randrange(1, 9) for _ in range(10)]
    spec = JobSpec(path="toy_job:ToyJob", config={"jitter_s": 0.0002})
    with CoreExecutor(SPEC, alone, DEBUG) as executor:
        executor.run(alone, plan_of(alone, *(0,) * graph.num_ops), sum(lengths))
        expected = outputs(executor, alone)
    with CoreExecutor(spec, spread, DEBUG) as executor:
        for length in lengths:
            placement = tuple(rng.randrange(3) for _ in graph.ops)
            priority = tuple(rng.randrange(5) for _ in graph.ops)
            plan = make_plan(spread, placement, priority, "random")
            check_trace(spread, plan, executor.run(spread, plan, length), TOLERANCE_NS)
        assert_equal(outputs(executor, spread), expected)


def test_window_does_not_change_values():
    wide = run_in(problem_of(toy_graph(window=5)), (SPLIT, 7))
    assert_equal(wide, run_in(problem_of(toy_graph(window=3)), (ALONE, 7)))


def test_checkpoint_continues_with_equal_bits(problem, reference):
    with CoreExecutor(SPEC, problem, DEBUG) as executor:
        executor.run(problem, plan_of(problem, *SPLIT), 4)
        arrays = executor.checkpoint().to_arrays()
    with CoreExecutor(SPEC, problem, DEBUG) as executor:
        executor.run(problem, plan_of(problem, *ALONE), 2)  # to be overwritten
        executor.restore(Checkpoint.from_arrays(arrays))
        assert executor.iteration == 4
        executor.run(problem, plan_of(problem, *SWAPPED), 3)
        assert_equal(outputs(executor, problem), reference)


def test_checkpoint_before_the_first_run_starts_from_the_beginning(problem, reference):
    with CoreExecutor(SPEC, problem, DEBUG) as executor:
        start = executor.checkpoint()
        executor.run(problem, plan_of(problem, *SPLIT), 2)
        executor.restore(start)
        executor.run(problem, plan_of(problem, *SPLIT), 7)
        assert_equal(outputs(executor, problem), reference)


def test_foreign_checkpoint_is_refused(problem):
    other = problem_of(toy_graph(window=4))
    with CoreExecutor(SPEC, problem) as executor:
        checkpoint = executor.checkpoint()
    with CoreExecutor(SPEC, other) as executor, pytest.raises(FormatError, match="made for graph"):
        executor.restore(checkpoint)


def test_trace_obeys_the_rules(problem):
    with CoreExecutor(SPEC, problem) as executor:
        executor.run(problem, plan_of(problem, *SPLIT), 2)
        trace = executor.run(problem, plan_of(problem, *SPLIT), 20)
    check_trace(problem, plan_of(problem, *SPLIT), trace, TOLERANCE_NS)
    assert trace.runtime == "executor"
    assert trace.iterations == 20


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_device_does_what_the_simulator_says(seed):
    # Without transfers the order of ops and the memory do not depend on time at all.
    graph = random_graph(seed)
    problem = problem_of(graph, num_devices=1)
    rng = random.Random(seed)
    priority = tuple(rng.randrange(5) for _ in graph.ops)
    plan = make_plan(problem, (0,) * graph.num_ops, priority, "random")
    costs = make_costs(problem, ((1000,),) * graph.num_ops)
    simulated = SimPyRuntime(costs).run(problem, plan, 6)
    with CoreExecutor(SPEC, problem) as executor:
        measured = executor.run(problem, plan, 6)
    assert [(s.op, s.iteration) for s in measured.op_spans] == [
        (s.op, s.iteration) for s in simulated.op_spans
    ]
    assert measured.peak_bytes == simulated.peak_bytes


def test_latest_edges_report_what_they_read():
    problem = problem_of(toy_graph(mode=EdgeMode.latest))
    with CoreExecutor(SPEC, problem) as executor:
        for iterations in (3, 20):
            trace = executor.run(problem, plan_of(problem, *SPLIT), iterations)
            check_trace(problem, plan_of(problem, *SPLIT), trace, TOLERANCE_NS)
            versions = {s.iteration: s.versions for s in trace.op_spans if s.op == 3}
            for iteration, (version,) in versions.items():
                assert version >= iteration - 1
            assert all(not s.versions for s in trace.op_spans if s.op != 3)


def test_switch_cost_is_counted(problem):
    with CoreExecutor(SPEC, problem) as executor:
        for placement in (SPLIT, SPLIT, SWAPPED, ALONE):
            executor.run(problem, plan_of(problem, *placement), 1)
        moved = [cost.moved_groups for cost in executor.switches]
        assert moved == [(), ("left", "right"), ("left",)]
        assert [cost.moved_bytes for cost in executor.switches] == [0, 128, 64]
        assert all(cost.time_ns > 0 for cost in executor.switches)


def test_profile_measures_and_leaves_the_job_alone(problem, reference):
    with CoreExecutor(SPEC, problem, DEBUG) as executor:
        executor.run(problem, plan_of(problem, *SPLIT), 4)
        alone = executor.profile([ProfileTask(device=0, ops=(1, 2), repeats=5)])
        assert {key: len(value) for key, value in alone.items()} == {(0, 1): 5, (0, 2): 5}
        assert all((value > 0).all() for value in alone.values())
        both = executor.profile(
            [
                ProfileTask(device=0, ops=(1,), repeats=7, warmup=0),
                ProfileTask(device=1, ops=(4,), repeats=0),
            ]
        )
        assert {key: len(value) for key, value in both.items()} == {(0, 1): 7}
        executor.run(problem, plan_of(problem, *SPLIT), 3)
        assert_equal(outputs(executor, problem), reference)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([ProfileTask(device=9, ops=(1,), repeats=1)], "names device 9"),
        ([ProfileTask(device=0, ops=(99,), repeats=1)], "names op 99"),
        ([ProfileTask(device=0, ops=(1,), repeats=1)] * 2, "one profile task"),
    ],
)
def test_wrong_profile_is_refused(problem, tasks, message):
    with CoreExecutor(SPEC, problem) as executor, pytest.raises(PlanError, match=message):
        executor.profile(tasks)


def test_wrong_requests_are_refused_and_do_not_end_the_executor(problem):
    with CoreExecutor(SPEC, problem) as executor:
        plan = plan_of(problem, *SPLIT)
        with pytest.raises(PlanError, match="at least 1 iteration"):
            executor.run(problem, plan, 0)
        other = problem_of(toy_graph(window=4))
        with pytest.raises(PlanError, match="this executor runs graph"):
            executor.run(other, plan_of(other, *SPLIT), 1)
        other = problem_of(toy_graph(), num_devices=3)
        with pytest.raises(PlanError, match="this executor runs cluster"):
            executor.run(other, plan_of(other, *SPLIT), 1)
        with pytest.raises(PlanError, match="no output 7 of op 1"):
            executor.read_output(1, 7)
        executor.run(problem, plan, 1)
    with pytest.raises(ExecutionError, match="is closed"):
        executor.run(problem, plan, 1)


def test_links_that_copy_and_foreign_devices_are_refused(problem):
    devices = problem.cluster.devices
    slow = Cluster(
        name="slow",
        devices=devices,
        links=(Link(src="core0", dst="core1", bytes_per_s=10), Link(src="core1", dst="core0")),
    )
    with pytest.raises(ClusterError, match="copy nothing"):
        CoreExecutor(SPEC, Problem(graph=problem.graph, cluster=slow))


def test_options_that_make_no_sense_are_refused(problem):
    with pytest.raises(ConfigError, match="spin_ns of an executor is at least 0, and it is -1"):
        ExecutorOptions(spin_ns=-1)
    with pytest.raises(PlanError, match="no output 3 of op 1"):
        CoreExecutor(SPEC, problem, ExecutorOptions(record=((1, 3),)))


def test_worker_with_other_cores_refuses_to_run():
    cores = tuple(sorted(os.sched_getaffinity(0)))
    check_affinity(Device(name="mine", kind="cpu", parent="cpu", cores=cores))
    check_affinity(Device(name="unbound", kind="cpu", parent="cpu"))
    with pytest.raises(ClusterError, match="'other' is bound to cores 0,9999"):
        check_affinity(Device(name="other", kind="cpu", parent="cpu", cores=(0, 9999)))


def test_input_has_the_jobs_bytes(problem):
    with CoreExecutor(SPEC, problem) as executor:
        assert executor.read_output(0, 0).view(np.float64).tolist() == [0.0] * 8
        # version -1 of join, as the job gives it
        assert executor.read_output(5, 0).view(np.float64).tolist() == [-1.0] * 8


def test_cores_outside_the_affinity_are_refused(problem):
    foreign = Cluster(
        name="foreign",
        devices=(Device(name="far", kind="cpu", parent="cpu", cores=(9999,)),),
    )
    with pytest.raises(ClusterError, match="core 9999"):
        CoreExecutor(SPEC, Problem(graph=problem.graph, cluster=foreign))
    gpu = Cluster(name="gpu", devices=(Device(name="g", kind="cuda", parent="g"),))
    with pytest.raises(ClusterError, match="cut from 'g'; GPUs here"):
        CoreExecutor(SPEC, Problem(graph=problem.graph, cluster=gpu))
