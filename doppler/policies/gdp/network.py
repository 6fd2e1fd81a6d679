"""GDP's network: GraphSAGE over the graph, segment-recurrent attention over its ops, one softmax.

Legend: N ops in topological order, E edges, F features, H hidden, D devices, L segment length.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MaxPoolSage(nn.Module):
    """`h_v <- relu(W [h_v ; max over neighbours u of sigmoid(W_p h_u)])`.

    Source: Zhou et al. 2019 (arXiv 1910.01578), section 3.1; Hamilton et al. 2017, equation 3.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.pool = nn.Linear(width, hidden)
        self.update = nn.Linear(width + hidden, hidden)

    def forward(self, embeddings: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        """Returns embeddings N x H of embeddings N x F and edges seen from both ends."""
        sent = torch.sigmoid(self.pool(embeddings))[sources]
        index = targets[:, None].expand_as(sent)
        pooled = embeddings.new_zeros(len(embeddings), sent.shape[1])
        pooled = pooled.scatter_reduce(0, index, sent, "amax", include_self=True)
        return F.relu(self.update(torch.cat([embeddings, pooled], dim=1)))


class SegmentLayer(nn.Module):
    """Attention from a segment to itself and to the one before it; no positions.

    The segment before it gives keys and values and no gradient (Dai et al. 2019, equation 1). The
    graph's embedding gates the layer's input, feature by feature (GDP's superposition).
    """

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, hidden)
        self.attention = nn.MultiheadAttention(hidden, heads, batch_first=True)
        self.norm_attention = nn.LayerNorm(hidden)
        self.feed = nn.Sequential(
            nn.Linear(hidden, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden)
        )
        self.norm_feed = nn.LayerNorm(hidden)

    def forward(self, embeddings: Tensor, graph: Tensor, segment: int) -> Tensor:
        """Returns N x H of embeddings N x H and the graph's embedding H."""
        gated = embeddings * 2.0 * torch.sigmoid(self.gate(graph))
        rows: list[Tensor] = []
        memory = gated[:0]
        for start in range(0, len(gated), segment):
            query = gated[start : start + segment]
            keys = torch.cat([memory, query])[None]
            attended, _ = self.attention(query[None], keys, keys, need_weights=False)
            rows.append(self.norm_attention(query + attended[0]))
            memory = query.detach()
        hidden = torch.cat(rows)
        result: Tensor = self.norm_feed(hidden + self.feed(hidden))
        return result


class GdpNetwork(nn.Module):
    """Logits over devices for every op."""

    def __init__(
        self,
        num_features: int,
        num_devices: int,
        hidden: int,
        sage_layers: int,
        placer_layers: int,
        heads: int,
        segment: int,
    ) -> None:
        super().__init__()
        self.segment = segment
        widths = [num_features, *[hidden] * sage_layers]
        self.sage = nn.ModuleList(MaxPoolSage(width, hidden) for width in widths[:-1])
        self.placer = nn.ModuleList(SegmentLayer(hidden, heads) for _ in range(placer_layers))
        self.head = nn.Linear(hidden, num_devices)

    def forward(self, features: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        """Returns logits N x D of features N x F and edges E, E."""
        sources, targets = torch.cat([src, dst]), torch.cat([dst, src])
        hidden = features
        for layer in self.sage:
            hidden = layer(hidden, sources, targets)
        graph = hidden.mean(dim=0)
        for placer in self.placer:
            hidden = placer(hidden, graph, self.segment)
        logits: Tensor = self.head(hidden)
        return logits
