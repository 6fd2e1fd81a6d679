"""The encoder that sees the placement so far, for message passing at every step.

Legend: N placed ops, A edges seen from both ends, S states, D devices, H hidden, R rank.
"""

import enum
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from doppler.policies.config import LEAKY_SLOPE, PolicyConfig
from doppler.policies.dual import PolicyInputs
from doppler.policies.encoder import GraphEncoder
from doppler.policies.features import NUM_RELATIONS, GraphTensors


class StateColumn(enum.IntEnum):
    """Columns per op of a partial placement, all 0 for an op that is not placed.

    Placed or not; start and end on the timeline and the work of its device, in parts of the horizon
    (the longer of critical path and work per device); log of its time over its mean time.
    """

    PLACED = 0
    START = 1
    END = 2
    LOAD = 3
    LOG_RATIO = 4


class EdgeStateColumn(enum.IntEnum):
    """Columns per edge: both ends on one device, on two, and only the neighbour placed."""

    TOGETHER = 0
    APART = 1
    NEIGHBOUR_PLACED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialPlacements:
    """States between two steps; names of ops and devices change nothing but the rows' order.

    Attributes:
        nodes: `StateColumn`s, N x S x F.
        edges: `EdgeStateColumn`s, A x S x F.
        members: 1 / ops on the device where the op is on it, else 0; S x D x N.
    """

    nodes: Tensor
    edges: Tensor
    members: Tensor


def partial_placements(
    inputs: PolicyInputs, devices_SN: Tensor, starts_SN: Tensor, ends_SN: Tensor
) -> PartialPlacements:
    """Returns the states in which ops are on `devices` (-1 = not placed) from start to end."""
    tables, graph, levels = inputs.tables, inputs.graph, inputs.assignment.levels
    num_devices = tables.work.shape[1]
    placed = devices_SN >= 0
    homes = devices_SN.clamp(min=0)
    ones = F.one_hot(homes, num_devices) * placed[:, :, None]
    ops = torch.arange(devices_SN.shape[1])
    work = torch.from_numpy(tables.work)
    loads_SD = (ones * work).sum(dim=1)
    area = float(tables.mean_work.sum()) / num_devices
    horizon = max(1e-6, area, float(levels.critical_path))
    columns = {
        StateColumn.PLACED: placed.double(),
        StateColumn.START: starts_SN / horizon * placed,
        StateColumn.END: ends_SN / horizon * placed,
        StateColumn.LOAD: loads_SD.gather(1, homes) / horizon * placed,
        StateColumn.LOG_RATIO: torch.from_numpy(tables.log_ratio)[ops, homes] * placed,
    }
    src, dst = graph.edge_index
    known, other = placed.index_select(1, dst), placed.index_select(1, src)
    same = devices_SN.index_select(1, src) == devices_SN.index_select(1, dst)
    links = {
        EdgeStateColumn.TOGETHER: known & other & same,
        EdgeStateColumn.APART: known & other & ~same,
        EdgeStateColumn.NEIGHBOUR_PLACED: other & ~known,
    }
    counts = ones.sum(dim=1, keepdim=True).clamp(min=1)
    return PartialPlacements(
        nodes=torch.stack([columns[c] for c in StateColumn], dim=2).float().transpose(0, 1),
        edges=torch.stack([links[c] for c in EdgeStateColumn], dim=2).float().transpose(0, 1),
        members=(ones / counts).float().transpose(1, 2),
    )


class StepEncoder(GraphEncoder):
    """The graph encoder with the state beside the static columns; equal where nothing is placed."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self.state = nn.Linear(len(StateColumn), config.hidden, bias=False)
        self.link = nn.Linear(len(EdgeStateColumn), config.rank, bias=False)

    def at(self, graph: GraphTensors, states: PartialPlacements) -> Tensor:
        """Returns the embeddings in every state, N x S x H."""
        num_ops, count = states.nodes.shape[:2]
        hidden = torch.tanh(self.embed(graph.nodes)[:, None] + self.state(states.nodes))
        gates = self.conv.gates(graph)[:, None] + self.link(states.edges)
        for _ in range(self.rounds):
            messages = self._messages(hidden, graph, gates)
            rows = self.update(messages.flatten(0, 1), hidden.flatten(0, 1))
            hidden = rows.view(num_ops, count, -1)
        return F.leaky_relu(hidden, LEAKY_SLOPE)

    def _messages(self, hidden: Tensor, graph: GraphTensors, gates: Tensor) -> Tensor:
        """What `DirectedConv` does, for many states: ops first, so that an edge moves a block."""
        num_ops, count = hidden.shape[:2]
        rank = self.conv.rank
        lowered = self.conv.lower(hidden).view(num_ops, count, NUM_RELATIONS, rank)
        lowered = lowered.transpose(1, 2).reshape(num_ops * NUM_RELATIONS, count, rank)
        src, dst = graph.edge_index * NUM_RELATIONS + graph.relation
        summed = torch.zeros_like(lowered).index_add(0, dst, lowered.index_select(0, src) * gates)
        summed = summed.view(num_ops, NUM_RELATIONS, count, rank) * graph.scale[:, :, None, None]
        messages: Tensor = self.conv.upper(summed.transpose(1, 2).flatten(2))
        return messages
