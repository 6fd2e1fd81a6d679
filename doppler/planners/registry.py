"""Planners by name: the built-in ones, and those that other packages register.

A package adds a planner with an entry point in the group `doppler.planners` that names a function
`plan(problem, scorer, budget, rng) -> Plan`.
"""

import importlib
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from doppler.core.errors import ConfigError, nearest
from doppler.planners.base import Planner

ENTRY_POINT_GROUP = "doppler.planners"

BUILT_IN = {
    "annealing": "doppler.planners.annealing:plan",
    "annealing_keys": "doppler.planners.anneal_orders:plan",
    "annealing_placement": "doppler.planners.annealing:plan_placement",
    "brkga": "doppler.planners.brkga:plan",
    "cpop": "doppler.planners.cpop:plan",
    "critical_path": "doppler.planners.critical_path:plan",
    "dmdas": "doppler.planners.dmdas:plan",
    "dp_only": "doppler.planners.dp_only:plan",
    "earliest_start": "doppler.planners.earliest_start:plan",
    "enumopt": "doppler.planners.enumopt:plan",
    "etf": "doppler.planners.etf:plan",
    "exact": "doppler.planners.cp_sat:plan",
    "exact_no_holds": "doppler.planners.cp_sat:plan_without_holds",
    "exhaustive": "doppler.planners.exhaustive:plan",
    "gdp": "doppler.planners.gdp:plan",
    "guided": "doppler.planners.guided:plan",
    "heft": "doppler.planners.heft:plan",
    "learned": "doppler.planners.learned:plan",
    "learned_joint": "doppler.planners.ablations:joint",
    "learned_per_step": "doppler.planners.ablations:per_step",
    "learned_place_only": "doppler.planners.ablations:place_only",
    "learned_select_only": "doppler.planners.ablations:select_only",
    "m_etf": "doppler.planners.m_etf:plan",
    "metis": "doppler.planners.metis:plan",
    "peft": "doppler.planners.peft:plan",
    "perturbed_heft": "doppler.planners.heft:perturbed",
    "placeto": "doppler.planners.placeto:plan",
    "portfolio": "doppler.planners.portfolio:plan",
    "random_best": "doppler.planners.random_best:plan",
    "round_robin": "doppler.planners.round_robin:plan",
    "single_device": "doppler.planners.single_device:plan",
}


def planner_names() -> tuple[str, ...]:
    """Returns the names of all planners, sorted."""
    return tuple(sorted({*BUILT_IN, *_registered()}))


def get_planner(name: str) -> Planner:
    """Returns a planner by its name.

    Raises:
        ConfigError: If the name is unknown (with the nearest valid one), or is registered twice,
            or what is registered is no function.
    """
    registered = _registered()
    if name in BUILT_IN and name in registered:
        raise ConfigError(
            f"planner names are unique, and {registered[name].value!r} is registered as the "
            f"built-in {name!r}"
        )
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return cast(Planner, getattr(importlib.import_module(module), attribute))
    if name not in registered:
        raise ConfigError(f"planner {name!r} is unknown; {nearest(name, planner_names())}")
    try:
        planner = registered[name].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"planner {name!r} is registered as {registered[name].value!r}, which cannot be "
            f"loaded: {error}"
        ) from error
    if not callable(planner):
        raise ConfigError(f"planner {name!r} is registered as {planner!r}, which is no function")
    return cast(Planner, planner)


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
