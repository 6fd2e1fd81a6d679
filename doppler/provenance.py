"""Where a number comes from: versions, revision, machine."""

import hashlib
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from doppler import __version__
from doppler.core.errors import ConfigError
from doppler.core.hardware import Hardware

PACKAGES = ("torch", "torch-geometric", "numba", "numpy", "mujoco", "gymnasium", "simpy")


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Returns the versions of Python and of the packages that decide results."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def revision() -> str:
    """Returns the git revision of this code, with "+" if files differ.

    "unknown" where no repository tracks this very file: an installed package may lie inside the
    checkout of something else.
    """
    file = Path(__file__).resolve()
    folder = file.parent
    try:
        _git(folder, "ls-files", "--error-unmatch", file.name)
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
    """Returns the key that a measured cost table is cached by: processors, versions, settings.

    The host's name is left out: it changes where the machine does not.
    """
    document = {
        "hardware": {key: value for key, value in asdict(hardware).items() if key != "name"},
        "versions": {"doppler": __version__, **versions()},
        "settings": dict(settings),
    }
    text = json.dumps(document, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def job_file_digest(path: str) -> str:
    """Returns the digest of the file of a job of the user's own.

    Raises:
        ConfigError: If it cannot be read.
    """
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"job.path is a Python file, and {path!r} cannot be read: {error.strerror}"
        ) from error
