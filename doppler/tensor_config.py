"""Settings of the jobs that compute a tensor graph: one schema per workload of DOPPLER."""

from dataclasses import dataclass

from doppler.config import AnyJobConfig
from doppler.core.errors import ConfigError, nearest
from doppler.graphs.ffnn import FFNNShape
from doppler.graphs.llama import LlamaShape
from doppler.setting import at_least, setting
from executor.tensors.job import DTYPES

_FFNN = FFNNShape(batch=4096, features=32, hidden=4096)
_LLAMA = LlamaShape(tokens=256, hidden=512, heads=8, feed_forward=1376, vocabulary=16_000)


@dataclass(slots=True, kw_only=True)
class TensorJobConfig(AnyJobConfig):
    """A graph of tensor ops, computed pass after pass on inputs drawn from the seed."""

    dtype: str = setting("float32", f"element type of all tensors: {', '.join(DTYPES)}")

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"job.dtype is {self.dtype!r}; {nearest(self.dtype, DTYPES)}")


@dataclass(slots=True, kw_only=True)
class ChainJobConfig(TensorJobConfig):
    """CHAINMM: (A x B) + (C x (D x E)) on square matrices."""

    size: int = setting(800, "rows and columns of every matrix")
    rows: int = setting(4, "row blocks of A, C and the result")
    inner: int = setting(2, "blocks of the dimension that A x B and C x (D x E) sum over")
    cols: int = setting(2, "column blocks of B, E and the result")
    de_inner: int = setting(4, "blocks of the dimension that D x E sums over")

    def __post_init__(self) -> None:
        TensorJobConfig.__post_init__(self)
        at_least(self, 1, "size", "rows", "inner", "cols", "de_inner")


@dataclass(slots=True, kw_only=True)
class FFNNJobConfig(TensorJobConfig):
    """FFNN: softmax(relu(X W1) W2) over a large batch."""

    batch: int = setting(_FFNN.batch, "rows of X")
    features: int = setting(_FFNN.features, "columns of X and of the result")
    hidden: int = setting(_FFNN.hidden, "hidden width")
    batch_blocks: int = setting(_FFNN.batch_blocks, "row blocks of X")
    hidden_blocks: int = setting(_FFNN.hidden_blocks, "column blocks of the hidden layer")
    tail_blocks: int = setting(
        _FFNN.tail_blocks, "row blocks of the softmax; a multiple of batch_blocks"
    )

    def __post_init__(self) -> None:
        TensorJobConfig.__post_init__(self)
        at_least(self, 1, "batch", "features", "hidden", "batch_blocks", "hidden_blocks")
        at_least(self, 1, "tail_blocks")


@dataclass(slots=True, kw_only=True)
class LlamaBlockJobConfig(TensorJobConfig):
    """LLAMA-BLOCK: one transformer block over a sequence."""

    tokens: int = setting(_LLAMA.tokens, "length of the sequence")
    hidden: int = setting(_LLAMA.hidden, "width of the residual stream")
    heads: int = setting(_LLAMA.heads, "attention heads")
    feed_forward: int = setting(_LLAMA.feed_forward, "inner width of the gated part")
    shards: int = setting(_LLAMA.shards, "parts of heads and feed-forward columns")
    row_blocks: int = setting(_LLAMA.row_blocks, "parts of the tokens")

    def __post_init__(self) -> None:
        TensorJobConfig.__post_init__(self)
        at_least(self, 1, "tokens", "hidden", "heads", "feed_forward", "shards", "row_blocks")


@dataclass(slots=True, kw_only=True)
class LlamaLayerJobConfig(LlamaBlockJobConfig):
    """LLAMA-LAYER: the block, the final norm and the last token's vocabulary logits."""

    vocabulary: int = setting(_LLAMA.vocabulary, "columns of the head")

    def __post_init__(self) -> None:
        LlamaBlockJobConfig.__post_init__(self)
        at_least(self, 1, "vocabulary")


TENSOR_JOBS: dict[str, TensorJobConfig] = {
    "chainmm": ChainJobConfig(name="chainmm"),
    "ffnn": FFNNJobConfig(name="ffnn"),
    "llama_block": LlamaBlockJobConfig(name="llama_block"),
    "llama_layer": LlamaLayerJobConfig(name="llama_layer"),
}
"""Choices of `job=` that are graphs of tensor ops, at sizes that fit a few cores."""
