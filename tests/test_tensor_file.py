"""Tensor files are written whole or not at all."""

import re
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from doppler.tensor_file import write_tensors

PROGRAM = """
import resource, sys
from pathlib import Path
import numpy as np
from doppler.tensor_file import write_tensors
path = Path(sys.argv[1])
write_tensors(path, {"a": np.arange(3)})
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    write_tensors(path, {"a": np.zeros(100_000)})
except OSError as error:
    print(error)
"""


def test_a_file_that_does_not_fit_leaves_the_older_one_and_nothing_beside(tmp_path):
    """In a process of its own: the limit holds for every file, that of the test's output too."""
    path = tmp_path / "c.safetensors"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert re.search(r"c\.safetensors' cannot be written: .*File too large", done.stdout)
    assert load_file(path)["a"].tolist() == [0, 1, 2]
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_folder_that_is_not_there_is_an_error_of_files(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        write_tensors(tmp_path / "none" / "c.safetensors", {"a": np.arange(3)})
