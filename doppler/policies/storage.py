"""Stores both policies: safetensors and the JSON of their configuration."""

import enum
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from doppler.core.errors import ConfigError, FormatError
from doppler.policies.ablations import new_policy
from doppler.policies.bundle import load_tensors, read_bundle, write_bundle
from doppler.policies.config import Learned, PolicyConfig, PolicyKind
from doppler.policies.dual import DualPolicy

KIND = "doppler.policy"
VERSION = 2
CHOICES: dict[str, type[enum.Enum]] = {"kind": PolicyKind, "learned": Learned}


def save_policy(policy: DualPolicy, directory: Path) -> None:
    """Writes both policies with their configuration; an older copy is replaced as a whole."""
    content = {"config": config_document(policy.config)}
    write_bundle(directory, KIND, VERSION, policy.state_dict(), content)


def load_policy(directory: Path) -> DualPolicy:
    """Returns the stored policies.

    Raises:
        FormatError: If the directory is absent, damaged, foreign, or of another shape.
    """
    tensors, content = read_bundle(directory, KIND, VERSION, frozenset({"config"}))
    policy = new_policy(parse_config(content["config"], directory), seed=0)
    load_tensors(policy, tensors, directory)
    return policy


def config_document(config: PolicyConfig) -> dict[str, Any]:
    """Returns the configuration as JSON values."""
    return {**asdict(config), "kind": config.kind.value, "learned": config.learned.value}


def parse_config(document: Any, where: Path) -> PolicyConfig:
    """Returns the configuration of a document; every key is needed, none may be added.

    Raises:
        FormatError: Names the key that is missing, unknown or of a wrong type, or out of range.
    """
    if not isinstance(document, dict):
        raise FormatError(f"a policy's config is an object, and {where} has {document!r}")
    expected = {entry.name: entry.type for entry in fields(PolicyConfig)}
    for key in expected:
        if key not in document:
            raise FormatError(f"a policy's config has the key {key!r}, and {where} lacks it")
    for key, value in document.items():
        if key not in expected:
            raise FormatError(f"a policy's config has no key {key!r}, and {where} holds it")
        if key not in CHOICES and type(value) not in (expected[key], int):
            raise FormatError(f"{key} is a number, and in {where} it is {value!r}")
    for key, choice in CHOICES.items():
        names = [entry.value for entry in choice]
        if document[key] not in names:
            raise FormatError(f"{key} is one of {names}, and in {where} it is {document[key]!r}")
    choices = {key: choice(document[key]) for key, choice in CHOICES.items()}
    try:
        return PolicyConfig(**{**document, **choices})
    except ConfigError as error:
        raise FormatError(f"the config of {where} is out of range: {error}") from error
