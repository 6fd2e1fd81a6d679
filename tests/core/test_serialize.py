"""Documents: exact round trips, and one clear sentence for everything that is not right."""

import copy
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.core import serialize
from doppler.core.cluster import Link
from doppler.core.errors import ClusterError, DopplerError, FormatError, GraphError, PlanError
from doppler.core.hardware import Hardware, Processor
from doppler.core.layout import Backend, Layout, Slice
from doppler.core.plan import make_plan
from doppler.core.problem import Problem
from doppler.core.serialize import from_json, load_graph, load_plan, save, to_json
from doppler.core.trace import OpSpan, Trace, TransferSpan
from simulator.compiled import CompiledRuntime
from tests.random_problems import problems, problems_with_costs, random_cluster, random_graph
from tests.strategies import cases


def small_problem():
    rng = random.Random(3)
    return Problem(
        graph=random_graph(rng, 6, cyclic=True, groups=True), cluster=random_cluster(rng, 2)
    )


def any_plan(problem, seed=0):
    rng = random.Random(seed)
    device_of_group = {
        name: [d for d in range(problem.cluster.num_devices) if problem.allowed[ops[0]][d]]
        for name, ops in problem.graph.group_members.items()
        if ops
    }
    chosen = {name: rng.choice(devices) for name, devices in device_of_group.items()}
    placement = []
    for op, allowed in zip(problem.graph.ops, problem.allowed, strict=True):
        options = [device for device, ok in enumerate(allowed) if ok]
        placement.append(
            0 if op.is_input else chosen[op.group] if op.group else rng.choice(options)
        )
    priority = tuple(rng.randint(-5, 5) for _ in problem.graph.ops)
    return make_plan(problem, tuple(placement), priority, source="random")


def hardware():
    return Hardware(
        name="host",
        processors=(
            Processor(
                name="cpu0",
                kind="cpu",
                model="some cpu",
                num_units=2,
                memory_bytes=1 << 30,
                core_ids=(0, 1),
            ),
            Processor(name="gpu0", kind="gpu", model="some gpu", num_units=8, memory_bytes=1 << 33),
        ),
        links=(Link(src="cpu0", dst="gpu0", latency_ns=5, bytes_per_s=10**9),),
    )


def layout():
    part = Slice(parent="cpu0", backend=Backend.core_group, units=1, name="core0")
    return Layout(name="one", slices=(part,))


def a_trace(problem):
    return Trace(
        graph_digest=problem.graph.digest,
        cluster_digest=problem.cluster.digest,
        source="random",
        runtime="simpy",
        iterations=2,
        op_spans=(OpSpan(1, 0, 0, 0, 1, 2, 3, (-1, 0)),),
        transfers=(TransferSpan(1, 0, 0, 0, 1, 3, 4, 5, 6),),
        peak_bytes=(7, 8),
    )


def through_text(value, kind, problem=None):
    return from_json(json.loads(json.dumps(to_json(value, problem))), kind, problem)


@given(problems())
@settings(max_examples=60, deadline=None)
def test_graph_cluster_and_plan_come_back_equal(problem):
    graph = through_text(problem.graph, "graph")
    assert graph == problem.graph
    assert graph.digest == problem.graph.digest
    cluster = through_text(problem.cluster, "cluster")
    assert cluster == problem.cluster
    assert cluster.digest == problem.cluster.digest
    plan = any_plan(problem)
    assert through_text(plan, "plan", problem) == plan


@given(problems_with_costs())
@settings(max_examples=30, deadline=None)
def test_costs_come_back_equal(case):
    problem, costs = case
    assert through_text(costs, "costs", problem) == costs


def test_hardware_layout_and_trace_come_back_equal():
    problem = small_problem()
    assert through_text(hardware(), "hardware") == hardware()
    assert through_text(layout(), "layout") == layout()
    assert through_text(a_trace(problem), "trace", problem) == a_trace(problem)


def test_holds_come_back_by_name():
    problem = small_problem()
    order = [op for op in problem.graph.topological_order if not problem.graph.ops[op].is_input]
    plan = make_plan(
        problem,
        (0,) * problem.graph.num_ops,
        (0,) * problem.graph.num_ops,
        "hand",
        holds=((order[0], order[-1]),),
    )
    document = to_json(plan, problem)
    names = [problem.graph.ops[op].name for op in (order[0], order[-1])]
    assert document["holds"] == [names]
    assert from_json(document, "plan", problem) == plan


def test_files_hold_what_was_saved_and_leave_nothing_beside(tmp_path):
    problem = small_problem()
    plan = any_plan(problem)
    save(problem.graph, tmp_path / "graph.json")
    save(problem.cluster, tmp_path / "cluster.json")
    save(hardware(), tmp_path / "hardware.json")
    save(layout(), tmp_path / "layout.json")
    for name, value in (("plan", plan), ("trace", a_trace(problem))):
        save(value, tmp_path / f"{name}.json", problem)
    assert load_graph(tmp_path / "graph.json") == problem.graph
    assert serialize.load_cluster(tmp_path / "cluster.json") == problem.cluster
    assert serialize.load_hardware(tmp_path / "hardware.json") == hardware()
    assert serialize.load_layout(tmp_path / "layout.json") == layout()
    assert load_plan(tmp_path / "plan.json", problem) == plan
    assert serialize.load_trace(tmp_path / "trace.json", problem) == a_trace(problem)
    assert len(list(tmp_path.iterdir())) == 6


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "graph.json"
    graph = small_problem().graph
    save(graph, path)

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(serialize.os, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        save(graph, path)
    monkeypatch.undo()
    assert load_graph(path) == graph
    assert [entry.name for entry in tmp_path.iterdir()] == ["graph.json"]


def documents():
    problem = small_problem()
    values = {
        "hardware": hardware(),
        "layout": layout(),
        "cluster": problem.cluster,
        "graph": problem.graph,
        "plan": any_plan(problem),
        "trace": a_trace(problem),
    }
    return problem, {kind: to_json(value, problem) for kind, value in values.items()}


def objects_in(value):
    """Every object inside a document, itself included, except maps from names."""
    if isinstance(value, dict):
        yield value
        for key, item in value.items():
            if key not in ("placement", "priority"):
                yield from objects_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from objects_in(item)


@pytest.mark.parametrize("kind", ["hardware", "layout", "cluster", "graph", "plan", "trace"])
def test_every_missing_and_every_unknown_key_is_refused(kind):
    problem, by_kind = documents()
    count = len(list(objects_in(by_kind[kind])))
    for index in range(count):
        keys = list(list(objects_in(by_kind[kind]))[index])
        for key in keys:
            damaged = copy.deepcopy(by_kind[kind])
            del list(objects_in(damaged))[index][key]
            with pytest.raises(DopplerError, match=f"file.json.* '?{key}'?") as caught:
                from_json(damaged, kind, problem, where="file.json")
            assert isinstance(caught.value, FormatError | PlanError)
        damaged = copy.deepcopy(by_kind[kind])
        list(objects_in(damaged))[index]["surprise"] = 1
        with pytest.raises(FormatError, match="unknown key 'surprise'"):
            from_json(damaged, kind, problem)


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        yield path, value
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, value


@given(st.sampled_from(["hardware", "layout", "cluster", "graph", "plan", "trace"]), st.data())
@settings(max_examples=200, deadline=None)
def test_a_wrong_type_anywhere_is_refused(kind, data):
    problem, by_kind = documents()
    damaged = copy.deepcopy(by_kind[kind])
    path, value = data.draw(st.sampled_from(list(leaves(damaged))))
    place = damaged
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = data.draw(
        st.sampled_from(
            [new for new in ({"a": 1}, True, [[]], 1.5) if type(new) is not type(value)]
        )
    )
    with pytest.raises(DopplerError, match=r"document"):
        from_json(damaged, kind, problem)


def test_headers_are_checked():
    graph = small_problem().graph
    document = to_json(graph)
    for version in (2, 0, "1", 1.0, True, None):
        with pytest.raises(FormatError, match="schema_version 1"):
            from_json(document | {"schema_version": version}, "graph")
    with pytest.raises(FormatError, match="type is 'cluster' here"):
        from_json(document, "cluster")
    with pytest.raises(FormatError, match="did you mean 'graph'"):
        from_json(document, "grph")
    with pytest.raises(FormatError, match="is an object"):
        from_json([1], "graph")


def test_names_and_problems_are_required():
    problem = small_problem()
    plan = any_plan(problem)
    with pytest.raises(FormatError, match="give its problem"):
        to_json(plan)
    with pytest.raises(FormatError, match="give its problem"):
        from_json(to_json(plan, problem), "plan")
    with pytest.raises(FormatError, match="Problem has none"):
        to_json(problem)


def test_foreign_plans_are_refused():
    problem = small_problem()
    document = to_json(any_plan(problem), problem)
    for key in ("graph_digest", "cluster_digest"):
        with pytest.raises(PlanError, match=key):
            from_json(document | {key: "0" * 32}, "plan", problem)


def test_plans_name_the_op_and_the_device_that_are_wrong():
    problem = small_problem()
    document = to_json(any_plan(problem), problem)
    name = next(iter(document["placement"]))
    with pytest.raises(FormatError, match=r"unknown device 'd9'; did you mean"):
        from_json(document | {"placement": document["placement"] | {name: "d9"}}, "plan", problem)
    with pytest.raises(FormatError, match=r"placement names the unknown op 'opp1'"):
        from_json(document | {"placement": document["placement"] | {"opp1": "d0"}}, "plan", problem)
    shorter = {key: value for key, value in document["priority"].items() if key != name}
    with pytest.raises(PlanError, match=f"priority has every op, and it lacks '{name}'"):
        from_json(document | {"priority": shorter}, "plan", problem)
    with pytest.raises(FormatError, match=r"\[before, after\]"):
        from_json(document | {"holds": [[name]]}, "plan", problem)


def test_rules_of_the_types_hold_for_files_too():
    problem = small_problem()
    graph = to_json(problem.graph)
    graph["edges"][0]["distance"] = 7
    with pytest.raises(GraphError, match=r"mine\.json: a distance"):
        from_json(graph, "graph", where="mine.json")
    graph["ops"][1]["name"] = graph["ops"][0]["name"]
    with pytest.raises(FormatError, match="repeats the op name"):
        from_json(graph, "graph")
    cluster = to_json(problem.cluster)
    cluster["devices"][0]["share"] = 2
    with pytest.raises(ClusterError, match="share"):
        from_json(cluster, "cluster")


def test_costs_of_other_devices_are_refused():
    rng = random.Random(1)
    problem = Problem(graph=random_graph(rng, 3), cluster=random_cluster(rng, 2))
    from tests.random_problems import random_costs

    document = to_json(random_costs(rng, problem), problem)
    with pytest.raises(FormatError, match="in order"):
        from_json(document | {"devices": ["d1", "d0"]}, "costs", problem)
    with pytest.raises(FormatError, match=r"op_ns lacks the key 'op0'"):
        from_json(document | {"op_ns": {}}, "costs", problem)


def test_traces_with_other_columns_are_refused():
    problem = small_problem()
    document = to_json(a_trace(problem), problem)
    document["op_spans"]["columns"] = ["op"]
    with pytest.raises(FormatError, match="columns"):
        from_json(document, "trace", problem)
    document = to_json(a_trace(problem), problem)
    document["transfers"]["rows"][0].pop()
    with pytest.raises(FormatError, match="has 9 columns, and the document has 8"):
        from_json(document, "trace", problem)


@pytest.mark.parametrize(
    ("table", "column", "value", "message"),
    [
        ("op_spans", "iteration", -1, r"rows\[0\]\.iteration is 0 to 1, .* has -1"),
        ("op_spans", "iteration", 2, r"rows\[0\]\.iteration is 0 to 1, .* has 2"),
        ("op_spans", "stream", 9, r"stream is 0 to"),
        ("op_spans", "ready_ns", -1, "ready_ns, start_ns, end_ns come in this order"),
        ("op_spans", "end_ns", 1, "come in this order, and the document has 1, 2, 1"),
        ("transfers", "output", 9, r"output is 0 to"),
        ("transfers", "iteration", 2, r"iteration is 0 to 1"),
        ("transfers", "arrival_ns", 0, "come in this order"),
    ],
)
def test_spans_out_of_range_are_refused(table, column, value, message):
    problem = small_problem()
    document = to_json(a_trace(problem), problem)
    document[table]["rows"][0][document[table]["columns"].index(column)] = value
    with pytest.raises(FormatError, match=message):
        from_json(document, "trace", problem)


def test_counts_of_a_trace_are_in_range():
    problem = small_problem()
    document = to_json(a_trace(problem), problem)
    with pytest.raises(FormatError, match="iterations is at least 1, and the document has 0"):
        from_json(document | {"iterations": 0}, "trace", problem)
    peaks = dict.fromkeys(document["peak_bytes"], -1)
    with pytest.raises(FormatError, match=r"peak_bytes\.d0 is at least 0, .* has -1"):
        from_json(document | {"peak_bytes": peaks}, "trace", problem)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"type": "graph", "type": "graph"}', "'type' stands twice"),
        ('{"type": NaN}', "NaN is no JSON number"),
        ("{", "no valid JSON"),
        ("[" * 100_000, "no valid JSON|nested too deeply"),
    ],
)
def test_damaged_files_are_refused(tmp_path, text, message):
    path = tmp_path / "graph.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=message) as caught:
        load_graph(path)
    assert "graph.json" in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(FormatError, match=r"missing\.json cannot be read"):
        load_graph(tmp_path / "missing.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match="no valid JSON"):
        load_graph(tmp_path / "binary.json")


def test_text_has_one_line_per_op_and_per_edge():
    graph = small_problem().graph
    text = serialize.format_json(to_json(graph))
    assert json.loads(text) == to_json(graph)
    for op in graph.ops:
        assert sum(f'"name": "{op.name}"' in line for line in text.splitlines()) == 1


@given(cases())
@settings(max_examples=60, deadline=None)
def test_routes_holds_and_pinned_inputs_come_back_equal(case):
    problem = case.problem
    assert through_text(problem.graph, "graph") == problem.graph
    assert through_text(problem.cluster, "cluster") == problem.cluster
    assert through_text(case.plan, "plan", problem) == case.plan
    assert through_text(case.costs, "costs", problem) == case.costs
    trace = CompiledRuntime(case.costs).run(problem, case.plan, case.iterations)
    assert through_text(trace, "trace", problem) == trace
