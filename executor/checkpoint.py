"""A checkpoint: all that a job needs to go on, as arrays; the caller chooses the file."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

import numpy as np

from doppler.core.errors import FormatError
from doppler.core.graph import DataflowGraph
from executor.initial import token_versions

Token = tuple[str, int, int]  # op name, output, version: -1 is the newest


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A job between two iterations.

    Attributes:
        graph_digest: The graph that it belongs to; devices and plan do not matter.
        iteration: Iterations done.
        groups: State arrays by group name; a group that is missing starts from the beginning.
        tokens: Bytes of every loop-carried tensor.
    """

    graph_digest: str
    iteration: int
    groups: Mapping[str, Mapping[str, np.ndarray]]
    tokens: Mapping[Token, np.ndarray]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns one flat table of arrays, as a safetensors file holds it."""
        arrays: dict[str, np.ndarray] = {
            "graph_digest": np.frombuffer(self.graph_digest.encode(), dtype=np.uint8),
            "iteration": np.array([self.iteration], dtype=np.int64),
        }
        for group, state in self.groups.items():
            for key, value in state.items():
                arrays[f"group/{quote(group, safe='')}/{quote(key, safe='')}"] = value
        for (op, output, version), value in self.tokens.items():
            arrays[f"token/{quote(op, safe='')}/{output}/{version}"] = value
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Checkpoint":
        """Returns the checkpoint of a flat table.

        Raises:
            FormatError: If a key is missing or of no known form.
        """
        groups: dict[str, dict[str, np.ndarray]] = {}
        tokens: dict[Token, np.ndarray] = {}
        for name, value in arrays.items():
            match name.split("/"):
                case ["graph_digest" | "iteration"]:
                    continue
                case ["group", group, key]:
                    groups.setdefault(unquote(group), {})[unquote(key)] = value
                case ["token", op, output, version] if _is_int(output) and _is_int(version):
                    tokens[unquote(op), int(output), int(version)] = value
                case _:
                    raise FormatError(
                        f"a checkpoint holds graph_digest, iteration, group/NAME/KEY and "
                        f"token/OP/OUTPUT/VERSION, and this one holds {name!r}"
                    )
        for needed in ("graph_digest", "iteration"):
            if needed not in arrays:
                raise FormatError(f"a checkpoint holds {needed!r}, and this one does not")
        iteration = np.asarray(arrays["iteration"])
        if iteration.size != 1 or iteration.dtype.kind not in "iu":
            raise FormatError(
                f"a checkpoint's iteration is one integer, and this one has "
                f"{iteration.dtype}{list(iteration.shape)}"
            )
        return cls(
            graph_digest=arrays["graph_digest"].tobytes().decode(errors="replace"),
            iteration=int(iteration.reshape(-1)[0]),
            groups=groups,
            tokens=tokens,
        )

    def check(self, graph: DataflowGraph) -> None:
        """Checks that the checkpoint belongs to `graph` and is whole.

        Raises:
            FormatError: Names the rule, the value found and the place.
        """
        if self.graph_digest != graph.digest:
            raise FormatError(
                f"the checkpoint was made for graph {self.graph_digest}, and graph "
                f"{graph.name!r} is {graph.digest}"
            )
        if self.iteration < 0:
            raise FormatError(f"iterations count from 0, and the checkpoint has {self.iteration}")
        unknown = sorted(set(self.groups) - set(graph.group_members))
        if unknown:
            raise FormatError(f"the checkpoint has group {unknown[0]!r}, and the graph has not")
        needed = {
            (graph.ops[op].name, output, version): graph.ops[op].outputs[output]
            for (op, output), count in token_versions(graph).items()
            for version in range(-count, 0)
        }
        if set(needed) != set(self.tokens):
            different = sorted(set(needed) ^ set(self.tokens))[0]
            raise FormatError(
                f"a checkpoint holds every loop-carried tensor of its graph and no other, and "
                f"{different} is in one of them only"
            )
        for token, num_bytes in needed.items():
            if self.tokens[token].nbytes != num_bytes:
                raise FormatError(
                    f"token {token} has {num_bytes} bytes, and the checkpoint has "
                    f"{self.tokens[token].nbytes}"
                )


def _is_int(text: str) -> bool:
    return text.removeprefix("-").isdecimal()
