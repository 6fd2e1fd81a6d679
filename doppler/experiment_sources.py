"""Which state of the sources a row of a table was made with."""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

import doppler
import simulator
from doppler.provenance import revision, versions
from simulator.machine_code import source_digest

DECIDING = ("core", "graphs", "planners", "policies", "training")
"""Subpackages of `doppler` that decide what a planner makes, beside the simulator and `columns`."""
PRETRAINED = "pretrained"
LIBRARIES = ("numpy", "numba", "torch", "ortools", "pymetis", "networkx")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The state of the sources.

    Attributes:
        revision: Git revision, with "+" if files differ from it; for people.
        digest: Of all that decides the value of a run: sources, the pretrained pair, and the
            versions of the libraries that plans depend on.
    """

    revision: str
    digest: str


@functools.cache
def present_sources() -> Sources:
    """Returns the state of the sources when it is first asked for: what this process runs."""
    package = Path(doppler.__file__).parent
    return Sources(
        revision=revision(),
        digest=digest_of(package, [Path(simulator.__file__).parent]),
    )


def digest_of(package: Path, others: list[Path]) -> str:
    """Returns the digest of a copy of `doppler` and of the folders of other packages."""
    digest = hashlib.sha256()
    digest.update(source_digest([*(package / name for name in DECIDING), *others]).encode())
    pretrained = sorted((package / "policies" / PRETRAINED).iterdir())
    for path in (package / "columns.py", *pretrained):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    digest.update(repr(sorted(versions(LIBRARIES).items())).encode())
    return digest.hexdigest()[:16]
