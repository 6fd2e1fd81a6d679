"""A directory of `tensors.safetensors` and `bundle.json`, written whole and read with suspicion.

Nothing is ever unpickled. The document names its format and version and the SHA-256 of the
tensors, so a damaged, mixed or foreign directory is refused with the rule that it breaks.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from doppler.core.errors import FormatError
from doppler.tensor_file import write_tensors

TENSORS = "tensors.safetensors"
DOCUMENT = "bundle.json"


def write_bundle(
    directory: Path, kind: str, version: int, tensors: dict[str, Tensor], content: dict[str, Any]
) -> None:
    """Writes a bundle beside `directory` and moves it there, so that a half-written one is none."""
    fresh = directory.with_name(f".{directory.name}.{os.getpid()}.new")
    old = directory.with_name(f".{directory.name}.{os.getpid()}.old")
    fresh.mkdir(parents=True)
    arrays = {name: tensor.detach().contiguous().numpy() for name, tensor in tensors.items()}
    write_tensors(fresh / TENSORS, arrays)
    document = {
        "format": kind,
        "schema_version": version,
        "sha256": hashlib.sha256((fresh / TENSORS).read_bytes()).hexdigest(),
        "content": content,
    }
    (fresh / DOCUMENT).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    if directory.exists():
        directory.rename(old)
    fresh.rename(directory)
    if old.exists():
        shutil.rmtree(old)


def read_bundle(
    directory: Path, kind: str, version: int, keys: frozenset[str]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns (tensors, content) of a bundle whose content has exactly `keys`.

    Raises:
        FormatError: If a file is absent or damaged, or of another format, version or key set.
    """
    for name in (TENSORS, DOCUMENT):
        if not (directory / name).is_file():
            raise FormatError(f"a {kind} is a directory with {name}, and {directory} has none")
    document = _document(directory / DOCUMENT)
    _expect(directory, "keys", sorted(document), ["content", "format", "schema_version", "sha256"])
    _expect(directory, "format", document["format"], kind)
    _expect(directory, "schema_version", document["schema_version"], version)
    data = (directory / TENSORS).read_bytes()
    _expect(
        directory, "sha256 of the tensors", hashlib.sha256(data).hexdigest(), document["sha256"]
    )
    content = document["content"]
    if not isinstance(content, dict):
        raise FormatError(f"the content of a {kind} is an object, and {directory} has {content!r}")
    _expect(directory, "content keys", sorted(content), sorted(keys))
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise FormatError(f"{directory / TENSORS} is no safetensors file: {error}") from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise FormatError(f"weights are finite, and tensor {name!r} of {directory} is not")
    return tensors, content


def load_tensors(target: torch.nn.Module, tensors: dict[str, Tensor], where: Path) -> None:
    """Copies tensors into a module whose parameters have exactly these names and shapes.

    Raises:
        FormatError: If a name or shape differs.
    """
    expected = target.state_dict()
    for name, tensor in expected.items():
        if name not in tensors:
            raise FormatError(f"the policy has a tensor {name!r}, and {where} lacks it")
        if tensors[name].shape != tensor.shape:
            raise FormatError(
                f"tensor {name!r} has shape {tuple(tensor.shape)}, and in {where} it has "
                f"{tuple(tensors[name].shape)}"
            )
    extra = sorted(set(tensors) - set(expected))
    if extra:
        raise FormatError(f"the policy has no tensor {extra[0]!r}, and {where} holds it")
    target.load_state_dict(tensors)


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FormatError(f"{path} is no JSON document: {error}") from error
    if not isinstance(document, dict):
        raise FormatError(f"{path} holds an object, and its top level is {type(document).__name__}")
    return document


def _expect(directory: Path, label: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise FormatError(f"{label} of {directory} is {expected!r}, and it is {found!r}")
