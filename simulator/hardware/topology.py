"""Reads what `nvidia-smi topo -m` prints."""

import re
from dataclasses import dataclass

from doppler.core.errors import FormatError

SELF = "X"
PCIE_RELATIONS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Paths without NVLink, from near to far."""
OLD_NAMES = {"SOC": "SYS"}
_GPU = re.compile(r"GPU\d+")
_NVLINK = re.compile(r"NV(\d+)")
_AFFINITY = re.compile(r"(CPU|NUMA) Affinity|GPU NUMA ID")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_CORES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """How the GPUs and network adapters of a host see each other.

    Attributes:
        gpus: Names of the GPUs, as printed.
        nics: Names of the network adapters, as printed.
        relations: relations[a][b] of two GPUs: "X", "NV2", "PIX", "PXB", "PHB", "NODE", "SYS".
        nic_relations: nic_relations[gpu][nic], without NVLink.
        cores: Per GPU the core ids of its CPU affinity; empty = not printed.
        numa: Per GPU its NUMA affinity as printed; empty = not printed.
    """

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    relations: tuple[tuple[str, ...], ...]
    nic_relations: tuple[tuple[str, ...], ...]
    cores: tuple[tuple[int, ...], ...]
    numa: tuple[str, ...]

    def num_nvlinks(self, a: int, b: int) -> int:
        """Bonded NVLinks between two GPUs; 0 = none."""
        return num_nvlinks(self.relations[a][b])


def num_nvlinks(relation: str) -> int:
    """Returns the number of NVLinks that a cell of the matrix states; 0 = it is no NV#."""
    match = _NVLINK.fullmatch(relation)
    return int(match.group(1)) if match else 0


def parse_topology(text: str, where: str = "topology") -> Topology:
    """Returns the topology that a text of `nvidia-smi topo -m` states.

    Rows of network adapters, the legends and terminal colours are skipped. Columns of network
    adapters may have any name; the affinity columns are the last ones and may be missing.

    Raises:
        FormatError: If there is no header, or a row does not fit it; names the line.
    """
    lines = [_ESCAPE.sub("", line) for line in text.splitlines()]
    start = next((n for n, line in enumerate(lines) if _is_header(line)), None)
    if start is None:
        raise FormatError(
            f"{where}: a line of GPU columns ('GPU0 GPU1 ... CPU Affinity') is the header, and no "
            f"line is one"
        )
    at = f"{where}, line {start + 1}"
    found = _AFFINITY.search(lines[start])
    names = lines[start][: found.start() if found else None].split()
    gpus = tuple(name for name in names if _GPU.fullmatch(name))
    if names[: len(gpus)] != list(gpus) or len(set(names)) != len(names):
        raise FormatError(f"{at}: the header names each GPU once, then other devices, not {names}")
    rows: dict[str, tuple[int, list[str]]] = {}
    for number, line in enumerate(lines[start + 1 :], start + 2):
        words = line.split()
        if words and words[0] in gpus:
            if words[0] in rows:
                raise FormatError(f"{where}, line {number}: {words[0]} has a second row")
            rows[words[0]] = (number, words[1:])
        if words and words[0].startswith("Legend"):
            break
    cells: list[list[str]] = []
    tails: list[list[str]] = []
    for index, gpu in enumerate(gpus):
        if gpu not in rows:
            raise FormatError(f"{at}: the header names {gpu}, and no row does")
        number, words = rows[gpu]
        place = f"{where}, line {number}"
        if len(words) < len(names):
            raise FormatError(
                f"{place}: a row has one word per device of the header ({len(names)}), and the row "
                f"of {gpu} has {len(words)}"
            )
        row = [OLD_NAMES.get(word, word) for word in words[: len(names)]]
        for column, word in enumerate(row):
            _check_cell(word, column == index, f"{gpu} and {names[column]}", place)
        cells.append(row)
        tails.append(words[len(names) :])
    _check_symmetric(gpus, cells, {gpu: rows[gpu][0] for gpu in gpus}, where)
    return Topology(
        gpus=gpus,
        nics=tuple(names[len(gpus) :]),
        relations=tuple(tuple(row[: len(gpus)]) for row in cells),
        nic_relations=tuple(tuple(row[len(gpus) :]) for row in cells),
        cores=tuple(
            _cores(tail, f"{where}, line {rows[gpu][0]}")
            for gpu, tail in zip(gpus, tails, strict=True)
        ),
        numa=tuple(tail[1] if len(tail) > 1 else "" for tail in tails),
    )


def _is_header(line: str) -> bool:
    """A row begins with a GPU, too, but then come paths."""
    words = line.split()
    return bool(words) and bool(_GPU.fullmatch(words[0])) and not any(map(_is_cell, words[1:2]))


def _is_cell(word: str) -> bool:
    word = OLD_NAMES.get(word, word)
    return word == SELF or word in PCIE_RELATIONS or num_nvlinks(word) > 0


def _check_cell(word: str, is_self: bool, pair: str, place: str) -> None:
    if not _is_cell(word):
        raise FormatError(
            f"{place}: a path is NV# or one of X, {', '.join(PCIE_RELATIONS)}, and that of {pair} "
            f"is {word!r}"
        )
    if (word == SELF) != is_self:
        raise FormatError(f"{place}: X stands for a device itself, and that of {pair} is {word!r}")


def _check_symmetric(
    gpus: tuple[str, ...], cells: list[list[str]], lines: dict[str, int], where: str
) -> None:
    for a, first in enumerate(gpus):
        for b, second in enumerate(gpus[:a]):
            if cells[a][b] != cells[b][a]:
                raise FormatError(
                    f"{where}, line {lines[first]}: a path is the same both ways, and {first} to "
                    f"{second} is {cells[a][b]}, back {cells[b][a]}"
                )


def _cores(tail: list[str], place: str) -> tuple[int, ...]:
    if not tail or tail[0] == "N/A":
        return ()
    if not _CORES.fullmatch(tail[0]):
        raise FormatError(
            f"{place}: CPU affinity is a list of cores such as 0-19,40-59, not {tail[0]!r}"
        )
    cores: list[int] = []
    for part in tail[0].split(","):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return tuple(cores)
