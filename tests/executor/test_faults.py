"""Whatever goes wrong ends in one clear error, and nothing is left behind (see conftest.py)."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import psutil
import pytest
from core_clusters import plan_of, problem_of
from toy_job import toy_graph

from doppler.core.errors import (
    CapacityError,
    ConfigError,
    DeadlockError,
    ExecutionError,
    KernelError,
    WorkerDiedError,
    WorkerHungError,
)
from doppler.core.graph import DataflowGraph, Op
from executor.checkpoint import Checkpoint
from executor.deadlines import DeadlinePolicy
from executor.job_spec import JobSpec
from executor.options import ExecutorOptions
from executor.runtime import CoreExecutor

pytestmark = pytest.mark.timeout(60)

SPLIT = (0, 0, 1, 1, 0, 1, 0, 1)
QUICK = ExecutorOptions(
    deadlines=DeadlinePolicy(minimum_ns=10**9, unknown_ns=10**9, quiet_ns=2 * 10**9)
)


def toy(op=None, what=None, iteration=5, path="toy_job:ToyJob"):
    trouble = {} if op is None else {op: {"what": what, "iteration": iteration}}
    return JobSpec(path=path, config={"trouble": trouble})


@pytest.fixture(scope="module")
def problem():
    return problem_of(toy_graph())


def run_into_trouble(problem, spec, error, options=QUICK):
    """Returns the error that ten iterations end in, and the executor."""
    executor = CoreExecutor(spec, problem, options)
    with pytest.raises(error) as caught:
        executor.run(problem, plan_of(problem, *SPLIT), 10)
    with pytest.raises(ExecutionError, match="closed"):
        executor.run(problem, plan_of(problem, *SPLIT), 1)
    assert not psutil.Process().children()
    return str(caught.value), executor


def test_killed_worker_is_named_with_op_iteration_and_last_spans(problem):
    text, executor = run_into_trouble(problem, toy("b1", "die"), WorkerDiedError)
    assert "device 'core0'" in text
    assert "op 'b1' of iteration 5" in text
    assert "SIGKILL" in text
    assert "last spans" in text
    assert "@5" in text
    assert executor.survivors() == (1,)


def test_exit_code_is_told(problem):
    text, _ = run_into_trouble(problem, toy("join", "exit"), WorkerDiedError)
    assert "ended with exit code 3" in text
    assert "op 'join' of iteration 5" in text


def test_python_error_comes_with_its_traceback(problem):
    text, executor = run_into_trouble(problem, toy("a2", "raise"), KernelError)
    first = text.splitlines()[0]
    assert "device 'core0'" in first
    assert "op 'a2' in iteration 5" in first
    assert "ZeroDivisionError: the environment divided by zero" in first
    assert "in misbehave" in text
    assert executor.survivors() == (0, 1)


def test_python_error_on_a_stream_thread(problem):
    threaded = problem_of(toy_graph(), num_streams=2)
    text, _ = run_into_trouble(threaded, toy("a2", "raise"), KernelError)
    assert "op 'a2' in iteration 5" in text


def test_hanging_op_passes_its_deadline(problem):
    text, executor = run_into_trouble(problem, toy("b0", "hang"), WorkerHungError)
    assert "device 'core1'" in text
    assert "op 'b0' of iteration 5" in text
    assert "its deadline is 1 s" in text
    assert executor.survivors() == (0,)


def test_stopped_worker_counts_as_hung(problem):
    with CoreExecutor(toy(), problem, QUICK) as executor:
        executor.run(problem, plan_of(problem, *SPLIT), 2)
        victim = max(psutil.Process().children(), key=lambda child: child.pid)
        threading.Timer(0.5, victim.suspend).start()
        with pytest.raises(WorkerHungError, match="device 'core1'"):
            executor.run(problem, plan_of(problem, *SPLIT), 10**6)


def test_lost_messages_are_a_deadlock_that_lists_who_waits(problem):
    text, executor = run_into_trouble(problem, toy("a0", "lose messages"), DeadlockError)
    assert "core1: a1@5 waits for tensor a0:0@5" in text
    assert "core0: " in text
    assert executor.survivors() == (0, 1)


def test_interrupt_tells_what_ran(problem):
    text, _ = run_into_trouble(problem, toy("b1", "interrupt parent"), KeyboardInterrupt)
    assert "interrupted with the worker of device 'core0'" in text
    assert "device 'core1'" in text


def test_job_that_cannot_be_built(problem):
    with pytest.raises(KernelError, match="building the job: RuntimeError: no such environment"):
        CoreExecutor(toy(path="toy_job:BrokenJob"), problem)
    with pytest.raises(KernelError, match="cannot be imported"):
        CoreExecutor(toy(path="toy_job:Nowhere"), problem)


def test_wrong_initial_bytes(problem):
    with pytest.raises(
        KernelError, match="output 0 of op 'data' has 64 bytes, and the job gives 24"
    ):
        CoreExecutor(toy(path="toy_job:BadInitialJob"), problem)


def test_bad_job_spec_is_refused():
    with pytest.raises(ConfigError, match=r"package\.module:Class"):
        JobSpec(path="toy_job")
    with pytest.raises(ConfigError, match="JSON"):
        JobSpec(path="a:B", config={"x": object()})


def test_full_mount_names_bytes_needed_and_free():
    huge = DataflowGraph(name="huge", ops=(Op(kind="mix", name="big", outputs=(1 << 50,)),))
    with pytest.raises(
        CapacityError, match=r"arena of graph 'huge' needs \d+ .* has \d+ bytes free"
    ):
        CoreExecutor(toy(), problem_of(huge))


def test_missing_mount_is_named(problem):
    with pytest.raises(CapacityError, match="'/no/such/mount' is not a directory"):
        CoreExecutor(toy(), problem, ExecutorOptions(shm_dir="/no/such/mount"))


def test_recovery_on_what_is_left(problem):
    with CoreExecutor(toy(), problem) as executor:
        executor.run(problem, plan_of(problem, *SPLIT), 10)
        expected = executor.export_groups()
    with CoreExecutor(toy("b1", "die"), problem) as executor:
        executor.run(problem, plan_of(problem, *SPLIT), 4)
        saved = executor.checkpoint().to_arrays()
        with pytest.raises(WorkerDiedError):
            executor.run(problem, plan_of(problem, *SPLIT), 6)
        assert executor.survivors() == (1,)
    smaller = problem_of(toy_graph(), num_devices=1)
    with CoreExecutor(toy(), smaller) as executor:
        executor.restore(Checkpoint.from_arrays(saved))
        executor.run(smaller, plan_of(smaller, *(0,) * 8), 6)
        for name, arrays in executor.export_groups().items():
            assert (arrays["values"] == expected[name]["values"]).all()


SCRIPT = """
import sys
sys.path[:0] = {path!r}
from test_faults import SPLIT, toy
from core_clusters import plan_of, problem_of
from toy_job import toy_graph
from executor.runtime import CoreExecutor
import psutil
problem = problem_of(toy_graph())
executor = CoreExecutor(toy({op!r}, {what!r}), problem)
print(*(child.pid for child in psutil.Process().children()), flush=True)
executor.run(problem, plan_of(problem, *SPLIT), 10)
"""


def run_script(op, what):
    """Runs an executor in a process of its own; returns the process, ended, and its workers."""
    script = SCRIPT.format(path=sys.path, op=op, what=what)
    process = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        start_new_session=True,
    )
    return process, [int(pid) for pid in process.stdout.split()]


def assert_gone(pids):
    until = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < until, "workers outlive their parent"
        time.sleep(0.01)


def test_workers_die_with_their_parent():
    process, workers = run_script("b0", "kill parent")
    assert process.returncode == -signal.SIGKILL
    assert len(workers) == 2
    assert_gone(workers)


def test_control_c_in_a_terminal_is_answered_by_the_parent_alone():
    process, workers = run_script("b0", "interrupt group")
    assert "KeyboardInterrupt: interrupted with the worker of device 'core0'" in process.stderr
    assert "in op 'b0' of iteration 5" in process.stderr
    assert_gone(workers)


def test_forgotten_executor_leaves_nothing():
    # No `with`, no `close`: the interpreter just ends.
    process, workers = run_script(None, None)
    assert process.returncode == 0, process.stderr
    assert_gone(workers)


def test_executor_of_another_thread_outlives_that_thread(problem):
    # The kernel's death signal follows the starting thread, so it must not be used here.
    made = []
    thread = threading.Thread(target=lambda: made.append(CoreExecutor(toy(), problem)))
    thread.start()
    thread.join()
    time.sleep(0.1)
    with made[0] as executor:
        executor.run(problem, plan_of(problem, *SPLIT), 3)


def test_what_workers_hold_open_has_no_name(problem):
    with CoreExecutor(toy(), problem):
        held = [
            os.readlink(f"/proc/{child.pid}/fd/{fd}")
            for child in psutil.Process().children()
            for fd in os.listdir(f"/proc/{child.pid}/fd")
        ]
    files = [path for path in held if path.startswith(("/dev/shm/", tempfile.gettempdir()))]
    assert len([path for path in files if path.startswith("/dev/shm/")]) == 2
    assert all(path.endswith("(deleted)") for path in files)
