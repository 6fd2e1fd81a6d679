"""PLACETO's network: message passing along the DAG, three pools, a softmax over devices.

Legend: B placements, N ops, E edges, F features, H hidden, D devices.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Messages(nn.Module):
    """K rounds in one direction: `h_v <- h_v + f(mean over senders u of g(h_u))`, shared f and g.

    The original takes the sum; the mean keeps large graphs in range.

    Source: Addanki et al. 2019 (arXiv 1906.08879), section 3.2.
    """

    def __init__(self, hidden: int, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds
        self.send = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.receive = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU())

    def forward(self, hidden: Tensor, senders: Tensor, receivers: Tensor) -> Tensor:
        """Returns embeddings N x B x H of embeddings N x B x H and edges E, E."""
        counts = torch.bincount(receivers, minlength=len(hidden)).clamp(min=1)
        share = (1.0 / counts).to(hidden.dtype)[:, None, None]
        embeddings = hidden
        for _ in range(self.rounds):
            sent = self.send(embeddings)
            summed = torch.zeros_like(sent).index_add(0, receivers, sent[senders])
            embeddings = embeddings + self.receive(summed * share)
        return embeddings


class PlacetoNetwork(nn.Module):
    """Logits over devices for one unit per placement.

    Attributes:
        messages_down, messages_up: Forward and backward along the DAG.
    """

    def __init__(self, num_features: int, num_devices: int, hidden: int, rounds: int) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(num_features, hidden), nn.ReLU())
        self.messages_down = Messages(hidden, rounds)
        self.messages_up = Messages(hidden, rounds)
        self.pool_in = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU())
        self.pool_out = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(3))
        self.head = nn.Sequential(
            nn.Linear(5 * hidden + num_features, 2 * hidden),
            nn.ReLU(),
            nn.Linear(2 * hidden, num_devices),
        )

    def encode(self, features: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        """Returns embeddings N x B x 2H of features N x B x F and edges E, E."""
        hidden = self.embed(features)
        down = self.messages_down(hidden, src, dst)
        return torch.cat([down, self.messages_up(hidden, dst, src)], dim=2)

    def logits(
        self, embeddings: Tensor, features: Tensor, members: Tensor, pools: Tensor
    ) -> Tensor:
        """Returns logits B x D.

        Args:
            embeddings: N x B x 2H.
            features: N x B x F, of the present state.
            members: B x N, weights of the unit's own ops; rows sum to 1.
            pools: 3 x B x N, weights of ancestors, descendants and parallel peers; rows sum to 1
                or are 0.
        """
        own = torch.einsum("bn,nbh->bh", members, embeddings)
        now = torch.einsum("bn,nbf->bf", members, features)
        sent = self.pool_in(embeddings)
        pooled = torch.einsum("pbn,nbh->pbh", pools, sent)
        parts = [F.relu(out(pooled[index])) for index, out in enumerate(self.pool_out)]
        logits: Tensor = self.head(torch.cat([own, *parts, now], dim=1))
        return logits
