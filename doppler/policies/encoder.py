"""The graph encoder: gated message passing with separate in- and out-messages.

Legend: N placed ops, A edges seen from both ends, H hidden, R rank.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import MessagePassing

from doppler.policies.columns import (
    FIRST_GRAPH,
    NUM_GRAPH,
    num_edge_columns,
    num_node_columns,
)
from doppler.policies.config import LEAKY_SLOPE, PolicyConfig, PolicyKind
from doppler.policies.encode_kernel import (
    compiled_embeddings,
    compiled_path_sums,
    compiled_z_rows,
)
from doppler.policies.features import NUM_RELATIONS, GraphTensors


class DirectedConv(MessagePassing):  # type: ignore[misc]
    """Edge-conditioned low-rank messages, summed per relation.

    `m_v = W_out [ s_vr * SUM over u in N_r(v) of (W_r h_u) * gate(e_uv, r) ]_r`, with r one of four
    relations (producer or consumer, same or other iteration) and s_vr = 1 / sqrt(messages).

    Source: DOPPLER section 4 (edge-conditioned map), here of rank R and direction-aware.

    Shapes:
        - **input:** embeddings N x H, edge index 2 x A, relation A, edge features A x F
        - **output:** N x H
    """

    def __init__(self, hidden: int, rank: int, num_edge_features: int) -> None:
        super().__init__(aggr="sum")
        _remove_generated_source()
        self.rank = rank
        self.lower = nn.Linear(hidden, NUM_RELATIONS * rank, bias=False)
        self.gate = nn.Sequential(
            nn.Linear(num_edge_features + NUM_RELATIONS, rank),
            nn.LeakyReLU(LEAKY_SLOPE),
            nn.Linear(rank, rank),
        )
        self.upper = nn.Linear(NUM_RELATIONS * rank, hidden)

    def gates(self, graph: GraphTensors) -> Tensor:
        """Returns the edges' gates, A x R; they are the same in every round."""
        kinds = F.one_hot(graph.relation, NUM_RELATIONS).to(graph.edges.dtype)
        gates: Tensor = 1.0 + self.gate(torch.cat([graph.edges, kinds], dim=1))
        return gates

    def forward(self, embeddings: Tensor, graph: GraphTensors, gates: Tensor) -> Tensor:
        """Returns the messages that every op receives."""
        num_ops = len(embeddings)
        lowered = self.lower(embeddings).view(num_ops * NUM_RELATIONS, self.rank)
        rows = graph.edge_index * NUM_RELATIONS + graph.relation
        size = (num_ops * NUM_RELATIONS, num_ops * NUM_RELATIONS)
        summed = self.propagate(rows, size=size, x=lowered, gates=gates)
        scaled = summed.view(num_ops, NUM_RELATIONS, self.rank) * graph.scale[:, :, None]
        messages: Tensor = self.upper(scaled.flatten(1))
        return messages

    def message(self, x_j: Tensor, gates: Tensor) -> Tensor:
        """Returns one message per edge."""
        return x_j * gates


class GraphEncoder(nn.Module):
    """Embeds every op once: `h^k = GRU(messages(h^(k-1)), h^(k-1))`, k = 1..rounds."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.rounds = config.rounds
        self.embed = nn.Linear(num_node_columns(config.kind), config.hidden)
        self.conv = DirectedConv(config.hidden, config.rank, num_edge_columns(config.kind))
        self.update = nn.GRUCell(config.hidden, config.hidden)

    def forward(self, graph: GraphTensors) -> Tensor:
        """Returns the embeddings, N x H."""
        if not torch.is_grad_enabled():
            return compiled_embeddings(self, graph)
        hidden = torch.tanh(self.embed(graph.nodes))
        gates = self.conv.gates(graph)
        for _ in range(self.rounds):
            hidden = self.update(self.conv(hidden, graph, gates), hidden)
        return F.leaky_relu(hidden, LEAKY_SLOPE)


class PriorWeights(nn.Module):
    """Weights of hand-made terms in a logit: `softplus(b + A g)`, g the columns of the graph.

    What a rule of thumb is worth depends on the graph: how transfers compare with ops, how much
    runs in parallel, how the devices differ, how many there are. The paper's pair has no terms.

    Shapes:
        - **output:** number of terms, 0 for the paper's pair
    """

    def __init__(self, config: PolicyConfig, num_terms: int) -> None:
        super().__init__()
        count = num_terms if config.kind is PolicyKind.improved else 0
        self.base = nn.Parameter(torch.zeros(count))
        self.slope = nn.Parameter(torch.zeros(count, NUM_GRAPH))

    def forward(self, graph: GraphTensors) -> Tensor:
        """Returns the weights for one graph."""
        if not len(self.base):
            return self.base
        columns = graph.nodes[0, FIRST_GRAPH : FIRST_GRAPH + NUM_GRAPH]
        weights: Tensor = F.softplus(self.base + self.slope @ columns)
        return weights


def joined(layer: nn.Linear, *parts: Tensor) -> Tensor:
    """Returns the layer's output for rows that are put together from parts."""
    if torch.is_grad_enabled():
        found: Tensor = layer(torch.cat(parts, dim=1))
        return found
    # Part by part: no room is taken for the rows.
    weights = torch.split(layer.weight, [part.shape[1] for part in parts], dim=1)
    sums = torch.addmm(layer.bias, parts[0], weights[0].t())
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        sums.addmm_(part, weight.t())
    return sums


def path_sums(embeddings: Tensor, jumps: Tensor) -> Tensor:
    """Returns the sum of embeddings over each op's longest path, its own included, N x ... x H.

    Pointer doubling: log2(depth) gathers instead of a walk per path.
    """
    if not torch.is_grad_enabled():
        return compiled_path_sums(embeddings.flatten(1), jumps).view(embeddings.shape)
    zero = embeddings.new_zeros(1, *embeddings.shape[1:])
    sums = embeddings
    for row in jumps:
        sums = sums + torch.cat([sums, zero])[row]
    return sums


def z_rows(values: Tensor) -> Tensor:
    """Returns columns with mean 0 and deviation 1 over the rows."""
    if not torch.is_grad_enabled():
        return compiled_z_rows(values.flatten(1)).view(values.shape)
    deviation = values.std(dim=0, correction=0) if len(values) > 1 else torch.zeros_like(values[0])
    return (values - values.mean(dim=0)) / (deviation + 1e-3)


def _remove_generated_source() -> None:
    """Removes the file that torch-geometric has loaded the layer's code from and leaves behind."""
    module = sys.modules.get(f"{__name__}_{DirectedConv.__name__}_propagate")
    if module is not None and module.__file__ is not None:
        Path(module.__file__).unlink(missing_ok=True)
