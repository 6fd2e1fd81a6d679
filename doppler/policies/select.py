"""SEL: the policy that chooses the next op among the candidates."""

from torch import Tensor, nn
from torch.nn import functional as F

from doppler.policies.columns import num_node_columns
from doppler.policies.config import LEAKY_SLOPE, PolicyConfig
from doppler.policies.encoder import (
    GraphEncoder,
    PriorWeights,
    joined,
    path_sums,
    z_rows,
)
from doppler.policies.features import GraphTensors


class SelectPolicy(nn.Module):
    """Scores every op once; the choice at a step is the softmax of scores over the candidates.

    `score(v) = p b(v) / CP + W3 LReLU(W2 [Z_v ; H_v ; hb_v ; ht_v])`, with Z the op's
    features, H its embedding, hb and ht the embeddings summed along its longest paths to an exit
    and from an entry, and the first term the critical-path prior (`PriorWeights`).

    Source: DOPPLER section 4; scores do not change within an episode here, so that sampling costs
    O(log V) per step.
    """

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        width = config.head_hidden
        self.encoder = GraphEncoder(config)
        self.features = nn.Linear(num_node_columns(config.kind), width)
        self.mix = nn.Linear(width + 3 * config.hidden, width)
        self.score = nn.Linear(width, 1, bias=False)
        self.prior = PriorWeights(config, 1)

    def forward(self, graph: GraphTensors) -> Tensor:
        """Returns one score per op, N, in float64."""
        embeddings = self.encoder(graph)
        down = z_rows(path_sums(embeddings, graph.down_jumps))
        up = z_rows(path_sums(embeddings, graph.up_jumps))
        own = F.leaky_relu(self.features(graph.nodes), LEAKY_SLOPE)
        mixed = joined(self.mix, own, embeddings, down, up)
        learned = self.score(F.leaky_relu(mixed, LEAKY_SLOPE))[:, 0]
        prior = self.prior(graph).sum() * graph.b_share
        scores: Tensor = learned.double() + prior.double()
        return scores
