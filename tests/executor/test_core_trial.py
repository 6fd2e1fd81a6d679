"""Core groups are there if a worker that is bound to them says so from inside."""

import os

import pytest

from executor.core_trial import look_at_cores, verify_core_groups


def test_workers_of_this_machine_see_their_cores_and_no_other():
    cores = sorted(os.sched_getaffinity(0))[:2]
    finding = verify_core_groups(cores)
    assert finding.is_present
    assert f"cores {cores[-1]} with 1 thread" in finding.detail
    assert finding.detail.count("thread") == len(cores)


def test_a_worker_that_was_not_bound_is_told():
    seen = {"cores": [3, 4], "threads": 1}
    finding = verify_core_groups([3, 4], lambda cores: seen)
    assert not finding.is_present
    assert "bound to cores 4 with a thread for each sees cores [3, 4] and 1 thread" in (
        finding.detail
    )


def test_too_many_threads_are_told():
    finding = verify_core_groups([5], lambda cores: {"cores": [5], "threads": 8})
    assert not finding.is_present
    assert "8 threads" in finding.detail


def test_cores_that_do_not_exist_are_no_core_group():
    answer = look_at_cores([100_000])
    assert "exit code 1" in answer["error"]
    finding = verify_core_groups([100_000])
    assert not finding.is_present


@pytest.mark.parametrize("cores", [[7], [7, 8], [7, 8, 9]])
def test_one_core_and_all_of_them_are_tried_once_each(cores):
    asked = []

    def look(group):
        asked.append(list(group))
        return {"cores": sorted(group), "threads": len(group)}

    assert verify_core_groups(cores, look).is_present
    assert asked == ([[7]] if len(cores) == 1 else [[cores[-1]], cores])
