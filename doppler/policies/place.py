"""PLC: the policy that chooses the device of the selected op.

Legend: N placed ops, D devices, K head width, P summary width, F device columns, R rows
(decisions).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from doppler.policies.columns import (
    NUM_PRIORS,
    NUM_STATIC,
    DeviceColumn,
    num_device_columns,
    num_node_columns,
)
from doppler.policies.config import LEAKY_SLOPE, PolicyConfig
from doppler.policies.encoder import GraphEncoder, PriorWeights, joined
from doppler.policies.features import GraphTensors

MASKED = -1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceHead:
    """The part of PLC that a step needs; everything else is worked out once per update.

    Attributes:
        own: Term of the op, N x K.
        placed: What an op adds to the summary of the device that it is placed on, N x P.
        lift: Weights of a device's summary, P x K.
        device: Term of the device, D x K.
        dynamic: Weights of the dynamic device columns, F x K.
        output: Output weights, K.
        priors: Weights of the priors, NUM_PRIORS for the improved pair and 0 for the paper's.
    """

    own: Tensor
    placed: Tensor
    lift: Tensor
    device: Tensor
    dynamic: Tensor
    output: Tensor
    priors: Tensor


class PlacePolicy(nn.Module):
    """Scores devices with one shared head, so any number of devices will do.

    `logit(v, d) = u LReLU(own_v + device_d + dynamic y_d + lift (mean of placed_w over ops w on d))
    - sum over i of p_i gap_i(v, d)`, with the gaps of `DeviceColumn` and `PriorWeights` p.

    Source: DOPPLER section 4 (features, embedding and S_d enter one hidden layer).
    """

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        width = config.head_hidden
        self.encoder = GraphEncoder(config)
        self.own = nn.Linear(num_node_columns(config.kind) + config.hidden, width)
        self.placed = nn.Linear(config.hidden, config.summary, bias=False)
        self.lift = nn.Linear(config.summary, width, bias=False)
        self.device = nn.Linear(NUM_STATIC, width, bias=False)
        self.dynamic = nn.Linear(num_device_columns(config.kind), width, bias=False)
        self.output = nn.Linear(width, 1, bias=False)
        self.prior = PriorWeights(config, NUM_PRIORS)

    def forward(self, graph: GraphTensors) -> PlaceHead:
        """Returns the per-update terms."""
        embeddings = self.encoder(graph)
        device = self.device(graph.devices)
        return PlaceHead(
            own=joined(self.own, graph.nodes, embeddings),
            placed=self.placed(embeddings),
            lift=self.lift.weight.t(),
            device=device,
            dynamic=self.dynamic.weight.t(),
            output=self.output.weight[0],
            priors=self.prior(graph),
        )


def place_logits(head: PlaceHead, ops_R: Tensor, columns_RDF: Tensor, means_RDP: Tensor) -> Tensor:
    """Returns logits, R x D, of decisions given the device columns and the placed ops' means."""
    inputs = torch.cat([columns_RDF, means_RDP], dim=2)
    hidden = (
        inputs @ torch.cat([head.dynamic, head.lift]) + head.own.index_select(0, ops_R)[:, None, :]
    )
    logits = F.leaky_relu(hidden + head.device, LEAKY_SLOPE) @ head.output
    return logits - prior_penalty(head, columns_RDF)


def prior_penalty(head: PlaceHead, columns_RDF: Tensor) -> Tensor:
    """Returns the priors' part of the logits, R x D: weighted gaps."""
    first = DeviceColumn.FINISH_GAP
    return columns_RDF[..., first : first + len(head.priors)] @ head.priors
