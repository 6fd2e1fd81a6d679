"""Where a number comes from: command, versions, revision, machine."""

import hashlib
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from doppler.core.hardware import Hardware

PACKAGES = ("torch", "torch-geometric", "numba", "numpy", "mujoco", "gymnasium", "simpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What is needed to repeat a run.

    Attributes:
        command: The exact command line.
        seed: Seed of everything random.
        revision: Git revision of the code, "unknown" outside a checkout.
        versions: Package -> version, Python included.
        machine: Processors in words.
    """

    command: str
    seed: int
    revision: str
    versions: Mapping[str, str]
    machine: str


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that decide results."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def revision() -> str:
    """Returns the git revision of this code, with "+" if files differ, or "unknown"."""
    folder = Path(__file__).resolve().parent
    try:
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        dirty = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return head + ("+" if dirty else "")


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def describe_machine(hardware: Hardware) -> str:
    """Returns the processors in words."""
    return ", ".join(
        f"{p.model} ({p.num_units} {'cores' if p.kind == 'cpu' else 'SMs'}, "
        f"{p.memory_bytes / 2**30:.0f} GiB)"
        for p in hardware.processors
    )


def content_key(hardware: Hardware, settings: Mapping[str, object]) -> str:
    """Returns the key that a measured cost table is cached by: machine, versions, job."""
    document = {
        "hardware": asdict(hardware),
        "versions": versions(),
        "settings": dict(settings),
    }
    text = json.dumps(document, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
