"""Cost models by precedence: who answers, what is said of it, and what nobody knows."""

import pytest

from doppler.core.cluster import Cluster, Device
from doppler.core.graph import INPUT_KIND, DataflowGraph, Op
from doppler.core.problem import Problem
from simulator.costs.composed import ComposedModel, model_shares
from simulator.costs.measured import CostEntry, CostTable
from simulator.costs.roofline import RooflineModel
from simulator.costs.source import UnknownTimeError

OPS = (
    Op(kind=INPUT_KIND, name="x"),
    Op(kind="walk", name="w0", flop=100),
    Op(kind="walk", name="w1", flop=150),
    Op(kind="learn", name="l", flop=1000),
)
CPU = Device(name="core", kind="cpu", parent="cpu", cores=(0,), copy_engines=0, flop_per_s=10**9)
GPU = Device(name="gpu", kind="cuda", parent="gpu", flop_per_s=10**10, launch_ns=5)
TABLE = CostTable(
    entries=tuple(
        CostEntry(
            kind="walk",
            flop=flop,
            device_kind="cpu",
            cores=1,
            median_ns=median,
            spread_ns=0,
            slowdown_permille=100,
            count=3,
        )
        for flop, median in ((100, 700), (200, 900))
    ),
    dispatch_ns={("cpu", 1): 33},
    provenance={},
)


def problem(*devices):
    return Problem(
        graph=DataflowGraph(name="g", ops=OPS, edges=()),
        cluster=Cluster(name="c", devices=devices),
    )


def test_the_first_model_that_knows_answers_and_is_named():
    model = ComposedModel(models=(TABLE, RooflineModel()))
    costs, origins = model.explain(problem(CPU, GPU))
    assert costs.op_ns == ((0, 0), (700, 15), (800, 20), (1000, 105))
    assert costs.slowdown_permille == (0, 100, 100, 0)
    assert costs.dispatch_ns == (33, 0)
    rows = {(o.kind, o.device): (o.model, o.detail, o.num_ops, o.min_ns, o.max_ns) for o in origins}
    assert rows == {
        ("walk", "core"): ("measured", "as measured, between sizes", 2, 700, 800),
        ("walk", "gpu"): ("roofline", "bound by arithmetic", 2, 15, 20),
        ("learn", "core"): ("roofline", "bound by arithmetic", 1, 1000, 1000),
        ("learn", "gpu"): ("roofline", "bound by arithmetic", 1, 105, 105),
    }
    assert model_shares(origins) == {"measured": 2 / 6, "roofline": 4 / 6}
    assert model.costs(problem(CPU, GPU)) == costs


def test_precedence_is_the_order():
    costs = ComposedModel(models=(RooflineModel(), TABLE)).costs(problem(CPU))
    assert [row[0] for row in costs.op_ns] == [0, 100, 150, 1000]


def test_what_no_model_knows_is_an_error_with_every_reason():
    bare = Device(name="bare", kind="cpu", parent="cpu", cores=(0,), copy_engines=0)
    with pytest.raises(UnknownTimeError) as error:
        ComposedModel(models=(TABLE, RooflineModel())).costs(problem(bare))
    assert str(error.value) == (
        "no model knows the time of op 'l' on 'bare' (measured: the cost table has no op kind "
        "'learn' on a cpu device of 1 cores; roofline: device 'bare' names no flop_per_s)"
    )
