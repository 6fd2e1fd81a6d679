"""The README's Python runs as written, and its commands exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from doppler.cli import COMMANDS

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_python_blocks_run(index, tmp_path):
    script = tmp_path / "block.py"
    script.write_text(BLOCKS[index])
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=220,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(README.parent)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_command_is_told_and_every_told_command_exists():
    told = set(re.findall(r"`doppler ([a-z-]+)", TEXT)) - {"COMMAND"}
    assert told == set(COMMANDS)
