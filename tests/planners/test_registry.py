"""Planners by name: built-in, from entry points, and the nearest name for a wrong one."""

from importlib.metadata import EntryPoint

import pytest

from doppler.core.errors import ConfigError
from doppler.planners import heft, registry
from doppler.planners.base import Budget
from doppler.planners.registry import get_planner, planner_names


def register(monkeypatch, name, value):
    point = EntryPoint(name, value, registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])


def test_built_in_planners_are_found():
    assert get_planner("heft") is heft.plan
    assert {"heft", "annealing", "round_robin"} <= set(planner_names())


def test_unknown_names_get_a_suggestion():
    with pytest.raises(ConfigError, match="'heftt' is unknown; did you mean 'heft'"):
        get_planner("heftt")


def test_entry_points_add_planners(monkeypatch):
    register(monkeypatch, "mine", "doppler.planners.heft:perturbed")
    assert get_planner("mine") is heft.perturbed
    assert "mine" in planner_names()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("heft", "doppler.planners.heft:perturbed", "unique"),
        ("mine", "doppler.planners.nothing:plan", "cannot be loaded"),
        ("mine", "doppler.planners.heft:nothing", "cannot be loaded"),
        ("mine", "doppler.planners.heft:SPREAD", "no function"),
    ],
)
def test_bad_entry_points_are_refused(monkeypatch, name, value, message):
    register(monkeypatch, name, value)
    with pytest.raises(ConfigError, match=message):
        get_planner(name)


def test_budgets_start_at_one():
    with pytest.raises(ConfigError, match="at least 1 scored plan, and it is 0"):
        Budget(0)
