"""Every executor test checks that no process, descriptor or temporary file is left."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest


def _files() -> set[Path]:
    return {
        path
        for root in ("/dev/shm", tempfile.gettempdir())
        for path in Path(root).iterdir()
        if path.name.startswith(("tmp", "doppler", "psm_", "sem."))
    }


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fails the test if it leaves a child process or a temporary file."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    fds = len(os.listdir("/proc/self/fd"))
    yield
    left = [c for c in psutil.Process().children(recursive=True) if c.pid not in before]
    assert not left, f"processes left: {left}"
    assert len(os.listdir("/proc/self/fd")) <= fds
