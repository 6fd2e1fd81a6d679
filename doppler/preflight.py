"""The preflight of a run as the user sees it: every need with its numbers."""

from doppler.console import View
from doppler.core.problem import Problem
from executor.launch.seats import Seating
from executor.preflight import check_needs, job_needs
from executor.process_needs import process_needs


def show_preflight(problem: Problem, shm_dir: str, view: View) -> None:
    """Writes what a job needs on this host and what there is, and what each process needs.

    Raises:
        CapacityError: If something that a run cannot do without does not suffice.
        ClusterError: If a device is not of this host.
    """
    seating = Seating(problem.cluster)
    needs = job_needs(problem, seating, shm_dir)
    view.line("preflight:")
    for need in needs:
        view.line(f"  {need.mark:<5}{'' if need.fits else ' '}{need.text}")
    for process in process_needs(problem.cluster, seating.seats):
        view.line(f"  {process.text}")
    check_needs(needs)
