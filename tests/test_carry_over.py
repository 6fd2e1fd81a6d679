"""Plans of other graphs as a start: names that both have keep their devices, the rest is legal."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import problems_with_costs

from doppler.api import make_scorer
from doppler.cli import main
from doppler.core.cluster import Cluster, Device, Link
from doppler.core.codecs.plan import PlanNames
from doppler.core.errors import CapacityError, FormatError, PlanError
from doppler.core.plan import check_plan
from doppler.core.problem import Problem
from doppler.core.serialize import load_plan_names, save
from doppler.graphs.builder import GraphBuilder
from doppler.graphs.llama import LlamaShape, llama_block
from doppler.machines import read_machine
from doppler.planners.base import Budget
from doppler.planners.mask import make_mask
from doppler.planners.random_best import plan as random_plan
from doppler.reuse import carry_over


def chain(*names, group=None):
    builder = GraphBuilder("chain")
    last = []
    for name in names:
        last = [builder.op(name, "task", last, [8], group=group)]
    if group is not None:
        builder.group(group, 10)
    return builder.build()


def cluster(*memory):
    devices = tuple(
        Device(name=f"d{index}", kind="cpu", parent=f"d{index}", memory_bytes=size, copy_engines=0)
        for index, size in enumerate(memory)
    )
    links = tuple(
        Link(src=a.name, dst=b.name, bytes_per_s=10**9)
        for a in devices
        for b in devices
        if a is not b
    )
    return Cluster(name="some", devices=devices, links=links)


def names_of(devices, priorities=None):
    return PlanNames(devices=devices, priorities=priorities or dict.fromkeys(devices, 1))


@settings(max_examples=40, deadline=None)
@given(made=problems_with_costs(full_links=False), seed=st.integers(0, 99))
def test_a_plan_of_the_same_problem_comes_back_as_it_is(tmp_path_factory, made, seed):
    problem, costs = made
    try:
        plan = random_plan(
            problem, make_scorer(problem, costs), Budget(3), np.random.default_rng(seed)
        )
    except (CapacityError, PlanError):  # nothing is legal here
        return
    path = tmp_path_factory.mktemp("plan") / "p.json"
    save(plan, path, problem)
    if not any(not op.is_input for op in problem.graph.ops):
        return
    found = carry_over(load_plan_names(path), problem, "p.json")
    placed = np.flatnonzero(make_mask(problem).unit_V >= 0)
    for kept, given_values in (
        (found.plan.placement, plan.placement),
        (found.plan.priority, plan.priority),
    ):
        assert [kept[op] for op in placed] == [given_values[op] for op in placed]
    assert found.num_named == found.num_placed


def test_another_size_keeps_all_devices_and_other_ops_follow_their_neighbours():
    small, large = (llama_block(LlamaShape(tokens=tokens)).graph for tokens in (1024, 4096))
    assert small.digest != large.digest
    machine = read_machine("p100_pcie_4").cluster
    devices = {op.name: f"gpu{index % 4}" for index, op in enumerate(small.ops) if not op.is_input}
    problem = Problem(graph=large, cluster=machine)
    found = carry_over(names_of(devices), problem, "p.json")
    placed = {
        op.name: machine.devices[found.plan.placement[index]].name
        for index, op in enumerate(large.ops)
        if not op.is_input
    }
    assert placed == devices

    problem = Problem(graph=chain("a", "new", "b", "last"), cluster=cluster(100, 100))
    found = carry_over(
        names_of({"a": "d1", "b": "d0", "gone": "d7"}, {"a": 7, "b": 3}), problem, ""
    )
    assert found.plan.placement == (1, 1, 0, 0)
    assert found.plan.priority == (7, 7, 3, 3)
    assert (found.num_named, found.num_placed) == (2, 4)


def test_an_op_before_all_named_ones_follows_its_consumer():
    problem = Problem(graph=chain("new", "a"), cluster=cluster(100, 100))
    assert carry_over(names_of({"a": "d1"}), problem, "").plan.placement == (1, 1)


def test_rules_of_the_problem_come_before_the_older_plan():
    graph = chain("a", "b", group="state")
    pinned = Problem(graph=chain("a", "b"), cluster=cluster(100, 100), pins={"a": "d0"})
    found = carry_over(names_of({"a": "d1", "b": "d1"}), pinned, "").plan
    check_plan(pinned, found)
    assert found.placement == (0, 1)
    grouped = Problem(graph=graph, cluster=cluster(5, 100), memory_headroom=0.0)
    assert carry_over(names_of({"a": "d0", "b": "d1"}), grouped, "").plan.placement == (1, 1)
    full = dataclasses.replace(grouped, cluster=cluster(5, 5))
    with pytest.raises(CapacityError):
        carry_over(names_of({"a": "d0", "b": "d1"}), full, "")


def test_plans_that_say_nothing_of_the_problem_are_refused(tmp_path):
    problem = Problem(graph=chain("a", "b"), cluster=cluster(100, 100))
    with pytest.raises(PlanError, match=r"old.json: .* of its 2 placed ops it names none"):
        carry_over(names_of({"x": "d0"}), problem, "old.json")
    with pytest.raises(PlanError, match=r"op 'a' is on 'd9'; did you mean"):
        carry_over(names_of({"a": "d9"}), problem, "old.json")
    path = tmp_path / "g.json"
    save(problem.graph, path)
    with pytest.raises(FormatError, match="type is 'plan' here"):
        load_plan_names(path)


def test_doppler_plan_begins_from_a_plan_of_another_graph(tmp_path, monkeypatch, capsys):
    """Of two simulations one is the carried plan, which is better than the greedy episode."""
    monkeypatch.chdir(tmp_path)
    for name, tokens in (("old", 1024), ("new", 2048)):
        words = ["graph", "llama_block", f"tokens={tokens}", f"output={name}.json"]
        assert main(words) == 0
    tail = ["cluster=p100_pcie_4", "output=plan.json"]
    assert main(["plan", "graph=old.json", *tail, "planner=annealing", "budget=3000"]) == 0
    capsys.readouterr()
    words = ["plan", "graph=new.json", *tail[:1], "output=next.json", "first_plans=[plan.json]"]
    assert main([*words, "budget=2", "mode=sample"]) == 0
    out = capsys.readouterr().out
    assert "plan.json: names 181 of 181 placed ops" in out
    old, new = (load_plan_names(f"{name}.json").devices for name in ("plan", "next"))
    assert old == new
    assert main([*words, "planner=heft"]) == 2
    assert "first_plans, checkpoint and seconds are settings" in capsys.readouterr().err
