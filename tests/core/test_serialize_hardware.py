"""Documents of hardware and layouts of every shape, and files that end too early."""

import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.core.cluster import Link, Route
from doppler.core.errors import DopplerError, FormatError
from doppler.core.hardware import Hardware, Processor
from doppler.core.layout import Backend, Layout, Slice
from doppler.core.partition import MigProfile, PartitionRules
from doppler.core.problem import Problem
from doppler.core.serialize import format_json, from_json, load_graph, load_hardware, save, to_json
from tests.random_problems import random_cluster, random_graph

NAMES = st.text(min_size=1, max_size=4)
COUNTS = st.integers(0, 1 << 70)


@st.composite
def profiles(draw):
    return MigProfile(
        name=draw(NAMES),
        units=draw(st.integers(1, 200)),
        memory_slices=draw(st.integers(1, 8)),
        memory_bytes=draw(COUNTS),
        max_count=draw(st.integers(1, 7)),
        starts=tuple(draw(st.lists(st.integers(0, 7), max_size=3))),
        copy_engines=draw(st.integers(0, 3)),
    )


@st.composite
def processors(draw, name):
    num_units = draw(st.integers(1, 5))
    ids = st.lists(st.integers(0, 99), min_size=num_units, max_size=num_units, unique=True)
    rules = st.builds(
        PartitionRules,
        mig=st.lists(profiles(), max_size=2).map(tuple),
        mps_step=st.integers(0, 4),
        green_min=st.integers(0, 8),
        green_step=st.integers(1, 8),
    )
    return Processor(
        name=name,
        kind=draw(st.sampled_from(["cpu", "gpu"])),
        model=draw(st.text(max_size=4)),
        num_units=num_units,
        memory_bytes=draw(COUNTS),
        core_ids=tuple(draw(st.one_of(st.just([]), ids))),
        copy_engines=draw(st.integers(0, 3)),
        num_streams=draw(st.integers(1, 3)),
        publish_ns=draw(COUNTS),
        flop_per_s=draw(COUNTS),
        memory_bytes_per_s=draw(COUNTS),
        launch_ns=draw(COUNTS),
        partitions=draw(st.none() | rules),
    )


@st.composite
def hardware(draw):
    """Processors in a row, each joined to the next, and perhaps a route from end to end."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    links = tuple(
        Link(
            src=src,
            dst=dst,
            latency_ns=draw(COUNTS),
            bytes_per_s=draw(st.none() | st.integers(1, 1 << 70)),
            buses=tuple(draw(st.lists(NAMES, max_size=2, unique=True))),
        )
        for src, dst in itertools.pairwise(names)
    )
    routes = ()
    if len(names) > 2 and draw(st.booleans()):
        routes = (Route(names[0], names[-1], tuple(names[1:-1])),)
    return Hardware(
        name=draw(NAMES),
        processors=tuple(draw(processors(name)) for name in names),
        links=links,
        routes=routes,
    )


LAYOUTS = st.builds(
    Layout,
    name=NAMES,
    slices=st.lists(
        st.builds(
            Slice,
            parent=NAMES,
            backend=st.sampled_from(Backend),
            units=st.integers(1, 9),
            name=NAMES,
            memory_bytes=st.none() | COUNTS,
            num_streams=st.integers(1, 3),
        ),
        max_size=3,
    ).map(tuple),
)


@settings(max_examples=60, deadline=None)
@given(hardware())
def test_hardware_comes_back_equal(value):
    assert from_json(json.loads(format_json(to_json(value))), "hardware") == value


@settings(max_examples=60, deadline=None)
@given(LAYOUTS)
def test_layouts_come_back_equal(value):
    assert from_json(json.loads(format_json(to_json(value))), "layout") == value


@settings(max_examples=60, deadline=None)
@given(hardware(), st.data())
def test_a_negative_number_anywhere_is_no_hardware(value, data):
    """No number of hardware may be negative: counts, times, rates and ids."""
    document = to_json(value)
    document.pop("schema_version")
    places = list(integers_in(document))
    holder, key = data.draw(st.sampled_from(places))
    holder[key] = data.draw(st.integers(-(1 << 70), -1))
    with pytest.raises(DopplerError, match="and") as caught:
        from_json(document | {"schema_version": 1}, "hardware", where="h.json")
    assert str(caught.value).startswith("h.json")


def integers_in(value):
    """(object or list, key) of every integer inside a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, dict | list):
            yield from integers_in(item)
        elif isinstance(item, int) and not isinstance(item, bool):
            yield value, key


def test_a_file_that_ends_too_early_is_refused_wherever_it_ends(tmp_path):
    rng = random.Random(5)
    problem = Problem(graph=random_graph(rng, 3), cluster=random_cluster(rng, 2))
    path = tmp_path / "g.json"
    save(problem.graph, path)
    text = path.read_text().rstrip()
    for end in range(len(text)):
        path.write_text(text[:end])
        with pytest.raises(FormatError, match=r"g\.json is no valid JSON"):
            load_graph(path)


def test_numbers_that_no_float_holds_are_refused(tmp_path):
    """1e999 is read as infinity, and a number of 5,000 digits is none for Python."""
    processor = Processor(name="p", kind="cpu", model="m", num_units=1, memory_bytes=77)
    path = tmp_path / "h.json"
    save(Hardware(name="h", processors=(processor,)), path)
    text = path.read_text()
    for number, message in (
        ("1e999", "memory_bytes is an integer, and the document has inf"),
        ("-Infinity", "-Infinity is no JSON number"),
        ("9" * 5000, "no valid JSON"),
        ("7.0", r"memory_bytes is an integer, and the document has 7\.0"),
    ):
        path.write_text(text.replace("77", number))
        with pytest.raises(FormatError, match=message):
            load_hardware(path)
