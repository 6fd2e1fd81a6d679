"""Every span is in the Chrome trace, at its nanosecond, and the file loads."""

import dataclasses
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.core.errors import FormatError
from doppler.report.chrome_trace import chrome_trace, write_chrome_trace


def _ns(us):
    return round(us * 1000)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**9))
def test_every_span_is_there_to_the_nanosecond(random_cases, seed):
    problem, _, trace = random_cases(seed)
    document = json.loads(json.dumps(chrome_trace(problem.graph, problem.cluster, trace)))
    events = document["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    ops = sorted(
        (e["args"]["op"], e["args"]["iteration"], e["pid"], e["tid"], _ns(e["ts"]), _ns(e["dur"]))
        for e in complete
        if e["cat"] != "transfer"
    )
    assert ops == sorted(
        (s.op, s.iteration, s.device, s.stream, s.start_ns, s.end_ns - s.start_ns)
        for s in trace.op_spans
    )
    moved = sorted(
        (_ns(e["ts"]), _ns(e["dur"]), e["pid"], e["args"]["iteration"])
        for e in complete
        if e["cat"] == "transfer"
    )
    assert moved == sorted(
        (t.start_ns, t.arrival_ns - t.start_ns, t.dst, t.iteration) for t in trace.transfers
    )
    marks = [_ns(e["ts"]) for e in events if e["ph"] == "i"]
    assert marks == list(trace.iteration_ends_ns())


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**9))
def test_slices_of_one_row_never_overlap_and_arrows_are_in_pairs(random_cases, seed):
    problem, _, trace = random_cases(seed)
    events = chrome_trace(problem.graph, problem.cluster, trace)["traceEvents"]
    rows = {}
    for event in events:
        if event["ph"] == "X":
            begin = _ns(event["ts"])
            row = rows.setdefault((event["pid"], event["tid"]), [])
            row.append((begin, begin + _ns(event["dur"])))
    for spans in rows.values():
        spans.sort()
        assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))
    starts = [event["id"] for event in events if event["ph"] == "s"]
    lands = [event["id"] for event in events if event["ph"] == "f"]
    assert sorted(starts) == sorted(lands) == list(range(len(starts)))
    assert len(starts) >= len(trace.transfers)


def test_large_times_keep_their_nanosecond(job):
    problem, _, trace, _ = job
    offset = 86_400_000_000_123  # a day and 123 ns
    moved = dataclasses.replace(
        trace,
        op_spans=tuple(
            dataclasses.replace(s, start_ns=s.start_ns + offset, end_ns=s.end_ns + offset)
            for s in trace.op_spans
        ),
    )
    document = json.loads(json.dumps(chrome_trace(problem.graph, problem.cluster, moved)))
    found = {_ns(e["ts"]) for e in document["traceEvents"] if e["ph"] == "X"}
    assert {s.start_ns for s in moved.op_spans} <= found


def test_written_file_names_devices_and_streams(job, tmp_path):
    problem, _, trace, _ = job
    path = tmp_path / "trace.json"
    write_chrome_trace(path, problem.graph, problem.cluster, trace)
    document = json.loads(path.read_text("utf-8"))
    names = {
        e["args"]["name"] for e in document["traceEvents"] if e["ph"] == "M" and "name" in e["args"]
    }
    assert {"core0 (cpu)", "core1 (cpu)", "stream 0"} <= names
    assert document["otherData"]["iterations"] == trace.iterations


@pytest.mark.parametrize("label", ["graph", "cluster"])
def test_a_foreign_trace_is_refused(job, label):
    problem, _, trace, _ = job
    foreign = dataclasses.replace(trace, **{f"{label}_digest": "f" * 32})
    with pytest.raises(FormatError, match=f"with the {label} that it ran, and it ran {label} ffff"):
        chrome_trace(problem.graph, problem.cluster, foreign)
