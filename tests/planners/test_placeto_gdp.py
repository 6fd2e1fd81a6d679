"""PLACETO and GDP: they learn, they obey masks and budgets, their variants differ as stated."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.errors import ConfigError
from doppler.core.graph import DataflowGraph, Edge, Op
from doppler.core.problem import Problem
from doppler.planners.base import Budget
from doppler.planners.gdp import GdpConfig, GdpPlanner
from doppler.planners.placeto import PlacetoConfig, PlacetoPlanner
from doppler.policies.config import MessagePassing
from doppler.policies.gdp.network import GdpNetwork, MaxPoolSage, SegmentLayer
from doppler.policies.placeto.network import Messages, PlacetoNetwork
from simulator.scorer import CompiledScorer


def two_kinds_of_ops(num_ops=6, dealt=False):
    """Independent ops, half of them fast on d0, half on d1.

    The first half is fast on d0, and round robin gets a third wrong; if `dealt` every other op is,
    and round robin is best.
    """
    devices = tuple(Device(name=f"d{i}", kind="cpu", parent=f"p{i}") for i in range(2))
    links = tuple(Link(src=a, dst=b) for a, b in (("d0", "d1"), ("d1", "d0")))
    ops = tuple(Op(kind="k", name=f"o{i}", outputs=(1,)) for i in range(num_ops))
    problem = Problem(
        graph=DataflowGraph(name="g", ops=ops),
        cluster=Cluster(name="c", devices=devices, links=links),
    )
    fast = [i % 2 == 0 if dealt else 2 * i < num_ops for i in range(num_ops)]
    times = tuple((10, 90) if first else (90, 10) for first in fast)
    return problem, make_costs(problem, times)


def chain(num_ops=5, latency=50):
    """A chain whose tensors are dear: all on one device is best."""
    devices = tuple(Device(name=f"d{i}", kind="cpu", parent=f"p{i}") for i in range(2))
    links = tuple(Link(src=a, dst=b, latency_ns=latency) for a, b in (("d0", "d1"), ("d1", "d0")))
    ops = tuple(Op(kind="k", name=f"o{i}", outputs=(1,)) for i in range(num_ops))
    edges = tuple(Edge(i, 0, i + 1) for i in range(num_ops - 1))
    problem = Problem(
        graph=DataflowGraph(name="g", ops=ops, edges=edges),
        cluster=Cluster(name="c", devices=devices, links=links),
    )
    return problem, make_costs(problem, ((10, 10),) * num_ops)


PLANNERS = {
    "placeto": PlacetoPlanner,
    "placeto, once": lambda: PlacetoPlanner(config=PlacetoConfig(messages=MessagePassing.once)),
    "placeto, stage I": lambda: PlacetoPlanner(config=PlacetoConfig(imitation=5)),
    "gdp": GdpPlanner,
    "gdp, stage I": lambda: GdpPlanner(config=GdpConfig(imitation=5)),
}


# Few rounds and large steps: enough for six ops.
FAST = {"rounds": 1, "rate": 1e-2, "last_rate": 1e-3}


@pytest.mark.parametrize("label", PLANNERS)
def test_finds_the_best_placement_of_small_problems(label):
    for problem, costs, best in ((*two_kinds_of_ops(), 30), (*chain(), 50)):
        scorer = CompiledScorer(problem, costs)
        plan = PLANNERS[label]()(problem, scorer, Budget(200), np.random.default_rng(0))
        assert scorer.num_calls <= 200
        (value,) = scorer.score([plan.placement], [plan.priority])
        assert value == best
        assert plan.source == label.split(",")[0]


@pytest.mark.parametrize(
    "planner",
    [
        PlacetoPlanner(config=PlacetoConfig(**FAST)),
        PlacetoPlanner(config=PlacetoConfig(messages=MessagePassing.once, **FAST)),
        GdpPlanner(config=GdpConfig(hidden=16, rate=3e-3)),
    ],
    ids=["placeto", "placeto, once", "gdp"],
)
def test_what_is_sampled_gets_better(planner):
    """Seen to fail with times cut off at twice the start's, the best one: nothing was learnt."""
    problem, costs = two_kinds_of_ops(dealt=True)
    planner(problem, CompiledScorer(problem, costs), Budget(600), np.random.default_rng(1))
    values = planner.values_ns
    assert len(values) >= 20
    assert np.mean(values[-5:]) < 0.7 * np.mean(values[:5])


def test_placeto_starts_from_the_better_of_round_robin_and_one_device():
    """Three calls score the starts; with no more than that, the best of them is the plan."""
    for (problem, costs), best in ((chain(), 50), (two_kinds_of_ops(dealt=True), 30)):
        scorer = CompiledScorer(problem, costs)
        plan = PlacetoPlanner()(problem, scorer, Budget(3), np.random.default_rng(0))
        assert scorer.score([plan.placement], [plan.priority]) == [best]


@pytest.mark.parametrize("label", ["placeto, stage I", "gdp, stage I"])
def test_stage_one_starts_nearer_to_the_teacher(label):
    """The teacher keeps the chain on the device of its first op, which is pinned."""
    problem, costs = chain()
    problem = replace(problem, pins={"o0": "d0"})
    first = {}
    for imitation in (0, 60):
        planner = (
            PlacetoPlanner(config=PlacetoConfig(imitation=imitation, workers=16, **FAST))
            if label.startswith("placeto")
            else GdpPlanner(config=GdpConfig(imitation=imitation))
        )
        planner(problem, CompiledScorer(problem, costs), Budget(150), np.random.default_rng(0))
        first[imitation] = planner.values_ns[0]
    assert first[60] < 0.8 * first[0]


def test_messages_reach_as_far_as_there_are_rounds():
    torch.manual_seed(0)
    layer = Messages(4, rounds=2)
    for parameter in layer.parameters():  # positive: no message dies in a ReLU
        torch.nn.init.constant_(parameter, 0.1)
    senders, receivers = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3])
    hidden = torch.rand(4, 1, 4)
    changed = hidden.clone()
    changed[0] += 1.0
    before, after = (layer(x, senders, receivers) for x in (hidden, changed))
    differs = [(before[n] != after[n]).any().item() for n in range(4)]
    assert differs == [True, True, True, False]


def test_pools_tell_ancestors_from_descendants():
    torch.manual_seed(0)
    network = PlacetoNetwork(num_features=3, num_devices=2, hidden=4, rounds=1)
    embeddings, features = torch.rand(3, 1, 8), torch.rand(3, 1, 3)
    members = torch.tensor([[0.0, 1.0, 0.0]])
    pools = torch.tensor([[[1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]], [[0.0, 0.0, 0.0]]])
    logits = network.logits(embeddings, features, members, pools)
    swapped = network.logits(embeddings, features, members, pools[[1, 0, 2]])
    assert logits.shape == (1, 2)
    assert not torch.allclose(logits, swapped)


def test_neighbours_are_pooled_by_their_maximum():
    torch.manual_seed(0)
    layer = MaxPoolSage(2, 3)
    embeddings = torch.rand(3, 2)
    one = layer(embeddings, torch.tensor([0]), torch.tensor([2]))
    both = layer(embeddings, torch.tensor([0, 0, 1]), torch.tensor([2, 2, 2]))
    pooled = torch.sigmoid(layer.pool(embeddings[:2])).max(dim=0).values
    by_hand = torch.relu(layer.update(torch.cat([embeddings[2], pooled])))
    assert torch.allclose(both[2], by_hand)
    assert torch.allclose(one[1], both[1])


def test_attention_sees_its_segment_and_the_one_before():
    torch.manual_seed(0)
    layer = SegmentLayer(8, 2)
    graph = torch.rand(8)
    embeddings = torch.rand(6, 8)
    changed = embeddings.clone()
    changed[0] += 1.0
    before, after = (layer(x, graph, 2) for x in (embeddings, changed))
    differs = [(before[n] != after[n]).any().item() for n in range(6)]
    assert differs == [True, True, True, True, False, False]


def test_the_graph_gates_the_placer():
    torch.manual_seed(0)
    network = GdpNetwork(3, 2, 8, 1, 1, 2, 4)
    features, src, dst = torch.rand(5, 3), torch.tensor([0]), torch.tensor([1])
    alone = network(features, src, dst)
    changed = features.clone()
    changed[4] += 1.0
    # Op 4 is in no edge with op 0 and in another segment: it reaches op 0 through the gate only.
    assert not torch.allclose(alone[0], network(changed, src, dst)[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: PlacetoConfig(workers=0),
        lambda: PlacetoConfig(rate=1e-4, last_rate=1e-3),
        lambda: GdpConfig(samples=0),
        lambda: GdpConfig(hidden=10),
        lambda: GdpConfig(imitation=-1),
    ],
)
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(ConfigError):
        make()
