"""The conformance suite on planners of this project: which cases each one takes."""

from doppler.planners.conformance import BUDGET, check_planner, conformance_cases

ONLY_JOBS = {"dp_only"}
ONLY_SMALL = {"exhaustive"}


def cases(name):
    """The cases that planner `name` is made for: all, deep-RL jobs, or graphs of a few ops."""
    rows = conformance_cases()
    if name in ONLY_JOBS:
        return [case for case in rows if case.is_job]
    return [case for case in rows if not case.is_job] if name in ONLY_SMALL else list(rows)


def check_registered(name, make_scorer):
    """Runs a registered planner on its cases."""
    is_exhaustive = name in ONLY_SMALL
    check_planner(
        name,
        make_scorer,
        cases=cases(name),
        budget=4000 if is_exhaustive else BUDGET,
        refuses_small_budgets=is_exhaustive,
    )
