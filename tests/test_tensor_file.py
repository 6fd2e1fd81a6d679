"""Tensor files are written whole or not at all."""

import resource

import numpy as np
import pytest
from safetensors.numpy import load_file

from doppler.tensor_file import write_tensors


@pytest.fixture
def no_more_than():
    """Sets how many bytes a file may have, as a disk that is full does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(num_bytes):
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_does_not_fit_leaves_the_older_one_and_nothing_beside(tmp_path, no_more_than):
    path = tmp_path / "c.safetensors"
    write_tensors(path, {"a": np.arange(3)})
    no_more_than(1000)
    with pytest.raises(OSError, match=r"c\.safetensors' cannot be written: .*File too large"):
        write_tensors(path, {"a": np.zeros(100_000)})
    assert load_file(path)["a"].tolist() == [0, 1, 2]
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_folder_that_is_not_there_is_an_error_of_files(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        write_tensors(tmp_path / "none" / "c.safetensors", {"a": np.arange(3)})
