"""Policies leave no file behind in the folder for temporary files."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
from doppler.policies.ablations import new_policy
from doppler.policies.config import PolicyConfig
for seed in (0, 1):
    new_policy(PolicyConfig(hidden=8, rank=4, rounds=1, head_hidden=8, summary=2), seed=seed)
"""


def test_making_policies_leaves_no_file_behind(tmp_path: Path) -> None:
    """Seen to fail: torch-geometric keeps the source of every message-passing layer."""
    subprocess.run(
        [sys.executable, "-c", PROGRAM],
        check=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".py"] == []
