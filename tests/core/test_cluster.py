"""Cluster rules, routes, siblings, and times of transfers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler.core.cluster import NS_PER_S, Cluster, Device, Link, Route
from doppler.core.errors import ClusterError


def device(name, **fields):
    return Device(**{"name": name, "kind": "cuda", "parent": "p", **fields})


def link(src, dst, **fields):
    return Link(**{"src": src, "dst": dst, "bytes_per_s": 10, "buses": (f"{src}{dst}",), **fields})


def cluster(devices=None, links=(), routes=()):
    return Cluster(
        name="c",
        devices=tuple(devices or (device("a"), device("b"), device("z"))),
        links=tuple(links),
        routes=tuple(routes),
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Cluster(name="c", devices=()), "needs a device"),
        (lambda: cluster([device("a"), device("a")]), "'a' stands twice"),
        (lambda: cluster([device("a", share=0.0)]), r"share lies in \(0, 1\], and device 'a'"),
        (lambda: cluster([device("a", share=1.5)]), r"has 1\.5"),
        (lambda: cluster([device("a", memory_bytes=-1)]), "memory_bytes is at least 0"),
        (lambda: cluster([device("a", num_streams=0)]), "num_streams is at least 1"),
        (lambda: cluster([device("a", num_streams=1 << 17)]), "at most 65536"),
        (lambda: cluster([device("a", copy_engines=-1)]), "copy_engines is at least 0"),
        (lambda: cluster([device("a", launch_ns=-1)]), "launch_ns is at least 0, and device 'a'"),
        (lambda: cluster([device("a", flop_per_s=-1)]), "flop_per_s is at least 0"),
        (lambda: cluster([device("a", memory_bytes_per_s=-1)]), "memory_bytes_per_s is at least"),
        (lambda: cluster(links=[link("a", "y")]), "names device 'y'"),
        (lambda: cluster(links=[link("a", "a")]), "joins one with itself"),
        (lambda: cluster(links=[link("a", "b"), link("a", "b")]), "stands twice"),
        (lambda: cluster(links=[link("a", "b", latency_ns=-1)]), "latency_ns is at least 0"),
        (lambda: cluster(links=[link("a", "b", bytes_per_s=0)]), "bytes_per_s is positive"),
        (lambda: cluster(links=[link("a", "b", buses=("x", "x"))]), "holds a bus once"),
        (lambda: cluster(links=[link("a", "b", bytes_per_s=None)]), "zero-copy link holds no bus"),
        (lambda: cluster(links=[link("a", "b", buses=())]), "holds at least one bus"),
        (
            lambda: cluster([device("a", copy_engines=0), device("b")], [link("a", "b")]),
            "copies on its stream and holds no bus",
        ),
        (
            lambda: cluster(links=[link("a", "b")], routes=[Route("a", "z", ("b",))]),
            "passes 'b' -> 'z', and there is no such link",
        ),
        (lambda: cluster(routes=[Route("y", "z", ("b",))]), "passes 'y' -> 'b', and there is no"),
        (
            lambda: cluster(
                links=[link("a", "b"), link("b", "a")], routes=[Route("a", "a", ("b",))]
            ),
            "joins 'a' with itself",
        ),
        (
            lambda: cluster(
                links=[link("a", "b"), link("b", "z"), link("a", "z")],
                routes=[Route("a", "z", ("b",))],
            ),
            "has both",
        ),
    ],
)
def test_broken_rules_are_named(build, message):
    with pytest.raises(ClusterError, match=message):
        build()


def test_routes_add_latencies_take_the_narrowest_link_and_hold_all_buses():
    found = cluster(
        links=[
            link("a", "b", latency_ns=3, bytes_per_s=100, buses=("x", "y")),
            link("b", "z", latency_ns=4, bytes_per_s=50, buses=("y", "w")),
        ],
        routes=[Route("a", "z", ("b",))],
    )
    route = found.link_table[0, 2]
    assert (route.latency_ns, route.bytes_per_s, route.buses) == (7, 50, ("x", "y", "w"))
    assert (1, 0) not in found.link_table
    assert found.bus_names == ("w", "x", "y")


def test_siblings_share_a_parent():
    found = cluster([device("a"), device("b"), device("z", parent="q"), device("y")])
    assert found.siblings == ((1, 3), (0, 3), (), (0, 1))


@given(st.integers(0, 10**12), st.integers(1, 10**12))
def test_occupancy_is_rounded_up(num_bytes, bytes_per_s):
    time = link("a", "b", bytes_per_s=bytes_per_s).occupancy_ns(num_bytes)
    assert time * bytes_per_s >= num_bytes * NS_PER_S > (time - 1) * bytes_per_s


def test_zero_copy_takes_no_time_on_the_wire():
    assert Link(src="a", dst="b").occupancy_ns(10**9) == 0


@pytest.mark.parametrize(
    "other",
    [
        cluster([device("a", memory_bytes=5), device("b"), device("z")]),
        cluster([device("a", launch_ns=5), device("b"), device("z")]),
        cluster(links=[link("a", "b")]),
    ],
)
def test_digest_sees_devices_and_links(other):
    assert cluster().digest != other.digest
    assert cluster().digest == Cluster(name="renamed", devices=cluster().devices).digest
