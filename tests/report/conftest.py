"""Fixtures of the report's tests; `report_samples` says how they are made."""

from collections.abc import Callable

import pytest
from report_samples import job_case, make_cluster, make_report, random_case, run_plan

from doppler.core.cluster import Cluster
from doppler.core.plan import Plan
from doppler.core.problem import Problem
from doppler.core.trace import Trace
from doppler.report.model import RunReport


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


@pytest.fixture(scope="session")
def report() -> RunReport:
    """A report with every part filled."""
    return make_report()
