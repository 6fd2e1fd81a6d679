"""The preflight of a run as the user sees it: every need with its numbers."""

from doppler.console import View
from doppler.core.problem import Problem
from executor.launch.seats import Seating
from executor.preflight import check_needs, job_needs


def show_preflight(problem: Problem, shm_dir: str, view: View) -> None:
    """Writes what a job needs on this host and what there is.

    Raises:
        CapacityError: If something that a run cannot do without does not suffice.
        ClusterError: If a device is not of this host.
    """
    needs = job_needs(problem, Seating(problem.cluster), shm_dir)
    view.line("preflight:")
    for need in needs:
        view.line(f"  {'fits' if need.fits else 'LESS':<5}{need.text}")
    check_needs(needs)
