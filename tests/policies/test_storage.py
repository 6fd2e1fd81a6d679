import json

import pytest
import torch

from doppler.core.errors import FormatError
from doppler.policies.bundle import DOCUMENT, TENSORS
from doppler.policies.config import PolicyConfig
from doppler.policies.dual import DualPolicy
from doppler.policies.storage import load_policy, save_policy

SMALL = PolicyConfig(hidden=8, rank=4, rounds=2, head_hidden=8, summary=3)


def edit(directory, change):
    document = json.loads((directory / DOCUMENT).read_text())
    change(document)
    (directory / DOCUMENT).write_text(json.dumps(document))


@pytest.fixture
def stored(tmp_path):
    save_policy(DualPolicy(SMALL, seed=3), tmp_path / "policy")
    return tmp_path / "policy"


def test_what_was_stored_comes_back_and_replaces_what_was_there(stored):
    policy = load_policy(stored)
    assert policy.config == SMALL
    for name, value in DualPolicy(SMALL, seed=3).state_dict().items():
        assert torch.equal(policy.state_dict()[name], value)
    save_policy(DualPolicy(SMALL, seed=4), stored)
    assert not torch.equal(
        load_policy(stored).state_dict()["select.mix.weight"],
        policy.state_dict()["select.mix.weight"],
    )
    assert [path.name for path in stored.parent.iterdir()] == ["policy"]


def test_absent_files_are_refused(stored):
    (stored / TENSORS).unlink()
    with pytest.raises(FormatError, match=r"a directory with tensors\.safetensors"):
        load_policy(stored)


def test_damaged_tensors_are_refused(stored):
    data = bytearray((stored / TENSORS).read_bytes())
    data[-1] ^= 1
    (stored / TENSORS).write_bytes(bytes(data))
    with pytest.raises(FormatError, match="sha256 of the tensors"):
        load_policy(stored)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema_version=99), "schema_version of .* is 2, and it is 99"),
        (lambda d: d.update(format="other"), "format of .* is 'doppler.policy'"),
        (lambda d: d.update(more=1), "keys of "),
        (lambda d: d.update(content=3), "content of a doppler.policy is an object"),
        (lambda d: d["content"].update(extra=1), "content keys of "),
        (lambda d: d["content"].update(config=3), "config is an object"),
        (lambda d: d["content"]["config"].pop("hidden"), "has the key 'hidden'"),
        (lambda d: d["content"]["config"].update(hiden=3), "has no key 'hiden'"),
        (lambda d: d["content"]["config"].update(hidden="8"), "hidden is a number"),
        (lambda d: d["content"]["config"].update(hidden=-8), "out of range: hidden"),
        (lambda d: d["content"]["config"].update(hidden=9), "has shape"),
        (lambda d: d["content"]["config"].update(kind="x"), "kind is one of"),
    ],
)
def test_foreign_documents_are_refused(stored, change, message):
    edit(stored, change)
    with pytest.raises(FormatError, match=message):
        load_policy(stored)


def test_text_that_is_no_json_is_refused(stored):
    (stored / DOCUMENT).write_text("{")
    with pytest.raises(FormatError, match="is no JSON document"):
        load_policy(stored)
    (stored / DOCUMENT).write_text("[]")
    with pytest.raises(FormatError, match="top level is list"):
        load_policy(stored)


def test_weights_that_are_not_finite_are_refused(tmp_path):
    policy = DualPolicy(SMALL, seed=0)
    with torch.no_grad():
        policy.select.prior.base.fill_(float("nan"))
    save_policy(policy, tmp_path / "p")
    with pytest.raises(FormatError, match=r"weights are finite, and tensor 'select\.prior\.base'"):
        load_policy(tmp_path / "p")
