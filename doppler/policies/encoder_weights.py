"""The encoder's weights as the compiled walk reads them, made once until they change.

Matrices that follow one another without anything between them (`upper` and the cell's input
weights) are multiplied, and those of relations that the graph does not have are left out.

Legend: F columns per op, C per edge, H hidden, R rank, L rank times relations that the graph has.
"""

from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from doppler.policies.assignment import Bools, Ints
from doppler.policies.features import NUM_RELATIONS
from doppler.policies.tables import Singles
from doppler.policies.weight_stamp import WeightStamp


class Conv(Protocol):
    """The weights of `DirectedConv`."""

    rank: int
    lower: nn.Linear
    gate: nn.Sequential
    upper: nn.Linear


class Encoder(Protocol):
    """The weights of `GraphEncoder`."""

    rounds: int
    embed: nn.Linear
    update: nn.GRUCell

    @property
    def conv(self) -> Conv:
        """Those of its messages."""


class EncoderWeights(NamedTuple):
    """An encoder's weights for graphs with given relations.

    Attributes:
        embed, embed_bias: F x H and H.
        gate_edge: Of the edge's columns, C x R.
        gate_kind: Of the relation, bias included, 4 x R.
        gate_out, gate_bias: Of the hidden layer, R x R, and 1 + bias, R.
        lower: H x L.
        old, old_bias: Of the last embedding for reset, keep and the new value; H x 3 H and 3 H.
        new, new_bias: Of the messages for the same; L x 3 H and 3 H.
        slots: Position of each relation in L, -1 = the graph does not have it; 4.
    """

    embed: Singles
    embed_bias: Singles
    gate_edge: Singles
    gate_kind: Singles
    gate_out: Singles
    gate_bias: Singles
    lower: Singles
    old: Singles
    old_bias: Singles
    new: Singles
    new_bias: Singles
    slots: Ints


class _Prepared:
    """What was made of one encoder's weights, per set of relations."""

    def __init__(self, stamp: WeightStamp) -> None:
        self.stamp = stamp
        self.by_relations: dict[bytes, EncoderWeights] = {}


_prepared: WeakKeyDictionary[object, _Prepared] = WeakKeyDictionary()


def encoder_weights(encoder: Encoder, has: Bools) -> EncoderWeights:
    """Returns the weights for graphs with these relations, made anew when they have changed."""
    conv, cell = encoder.conv, encoder.update
    into, out = _gate_layers(conv)
    stamp = WeightStamp.of(
        encoder.embed.weight,
        encoder.embed.bias,
        into.weight,
        into.bias,
        out.weight,
        out.bias,
        conv.lower.weight,
        conv.upper.weight,
        conv.upper.bias,
        cell.weight_ih,
        cell.bias_ih,
        cell.weight_hh,
        cell.bias_hh,
    )
    prepared = _prepared.get(encoder)
    if prepared is None or not prepared.stamp.agrees(stamp):
        prepared = _prepared[encoder] = _Prepared(stamp)
    key = has.tobytes()
    if key not in prepared.by_relations:
        with torch.no_grad():
            prepared.by_relations[key] = _prepare(encoder, np.flatnonzero(has))
    return prepared.by_relations[key]


def _prepare(encoder: Encoder, relations: Ints) -> EncoderWeights:
    conv, cell = encoder.conv, encoder.update
    into, out = _gate_layers(conv)
    num_columns = into.weight.shape[1] - NUM_RELATIONS
    slots = np.full(NUM_RELATIONS, -1, dtype=np.int64)
    slots[relations] = np.arange(len(relations))

    def per_relation(values: Tensor) -> Tensor:
        """Columns of the relations."""
        parts = values.reshape(len(values), NUM_RELATIONS, conv.rank)
        return parts[:, torch.from_numpy(relations)].flatten(1)

    return EncoderWeights(
        embed=_table(encoder.embed.weight.t()),
        embed_bias=_table(encoder.embed.bias[None])[0],
        gate_edge=_table(into.weight[:, :num_columns].t()),
        gate_kind=_table(into.weight[:, num_columns:].t() + into.bias),
        gate_out=_table(out.weight.t()),
        gate_bias=_table(1.0 + out.bias[None])[0],
        lower=_table(per_relation(conv.lower.weight.t())),
        old=_table(cell.weight_hh.t()),
        old_bias=_table(cell.bias_hh[None])[0],
        new=_table(per_relation(cell.weight_ih @ conv.upper.weight).t()),
        new_bias=_table((cell.bias_ih + cell.weight_ih @ conv.upper.bias)[None])[0],
        slots=slots,
    )


def _gate_layers(conv: Conv) -> tuple[nn.Linear, nn.Linear]:
    into, _, out = conv.gate
    assert isinstance(into, nn.Linear)
    assert isinstance(out, nn.Linear)
    return into, out


def _table(values: Tensor) -> Singles:
    """Returns a contiguous array of its own."""
    return np.array(values.numpy(), dtype=np.float32, order="C")
