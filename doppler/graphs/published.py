"""Counts of the published benchmark graphs, and the same counts of ours.

Source: facts of DOPPLER (arXiv 2505.23131). For the LLaMA graphs the published element-wise
breakdown is unknown; ours is built from first principles and comes near, and both are shown.
"""

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, fields

from doppler.graphs.counts import GraphCounts, count_graph
from doppler.graphs.ffnn import ffnn
from doppler.graphs.llama import LlamaShape, llama_block, llama_layer
from doppler.graphs.matmul_chain import matmul_chain
from doppler.graphs.tensor_program import TensorProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedGraph:
    """A published benchmark graph.

    Attributes:
        build: Builds ours.
        published: Published counts; None where a count is not known.
        num_devices: Devices that it is placed on.
    """

    build: Callable[[], TensorProgram]
    published: Mapping[str, int]
    num_devices: int


def _row(*values: int) -> dict[str, int]:
    names = [item.name for item in fields(GraphCounts)]
    return dict(zip(names, values, strict=False))


PUBLISHED: dict[str, PublishedGraph] = {
    "chainmm": PublishedGraph(
        build=matmul_chain, published=_row(112, 36, 76, 80, 32, 8, 5, 4, 4), num_devices=4
    ),
    "ffnn": PublishedGraph(
        build=ffnn, published=_row(192, 12, 180, 208, 16, 16, 12, 4, 8), num_devices=4
    ),
    "llama_block": PublishedGraph(
        build=llama_block, published=_row(215, 33, 182, 234, 4, 1, 49, 4, 8), num_devices=4
    ),
    "llama_layer": PublishedGraph(
        build=llama_layer, published=_row(261, 32, 229, 284, 7, 5, 63, 2, 6), num_devices=4
    ),
    "llama_block_8": PublishedGraph(
        build=lambda: llama_block(LlamaShape(shards=8)),
        published=_row(356, 54, 302, 398, 8, 2, 49, 4, 8),
        num_devices=8,
    ),
    "llama_layer_8": PublishedGraph(
        build=lambda: llama_layer(LlamaShape(shards=8)),
        published=_row(417, 50, 367, 470, 13, 9, 63),
        num_devices=8,
    ),
}
"""The graphs of the published table, by name."""


def counts_table() -> str:
    """Returns our counts beside the published ones, one graph a line: `ours/published`."""
    names = [item.name for item in fields(GraphCounts)]
    lines = [f"{'ours/published':16s}" + "".join(f"{name:>10s}" for name in names)]
    for label, entry in PUBLISHED.items():
        ours = astuple(count_graph(entry.build().graph))
        cells = [
            f"{value}/{entry.published.get(name, '?')}"
            for name, value in zip(names, ours, strict=True)
        ]
        lines.append(f"{label:16s}" + "".join(f"{cell:>10s}" for cell in cells))
    return "\n".join(lines)
