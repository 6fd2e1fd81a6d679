"""The preflight of a run as the user sees it: every need with its numbers."""

from doppler.console import View
from doppler.core.problem import Problem
from executor.launch.seats import Seating
from executor.preflight import check_needs, job_needs
from executor.process_needs import process_needs


def show_preflight(problem: Problem, shm_dir: str, view: View, limit_memory: bool = False) -> None:
    """Writes what a job needs on this host and what there is, and what each process needs.

    Args:
        problem: Graph and devices.
        shm_dir: Mount for the shared memory.
        view: Where it is written.
        limit_memory: The processes of core groups may take no more private memory than their share.

    Raises:
        CapacityError: If something that a run cannot do without does not suffice.
        ClusterError: If a device is not of this host.
    """
    seating = Seating(problem.cluster)
    needs = job_needs(problem, seating, shm_dir)
    view.line("preflight:")
    for need in needs:
        view.line(f"  {need.mark:<5}{'' if need.fits else ' '}{need.text}")
    for process, seat in zip(
        process_needs(problem.cluster, seating.seats), seating.seats, strict=True
    ):
        is_limited = limit_memory and not seat.shares
        view.line(f"  {process.text}{', the most that it may take' if is_limited else ''}")
    if limit_memory and all(seat.shares for seat in seating.seats):
        view.line("  no memory is limited: that is for core groups, and no process is one")
    check_needs(needs)
