"""Every executor test checks that no process and no descriptor is left."""

import os
from collections.abc import Iterator

import psutil
import pytest


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fails the test if it leaves a child process or an open descriptor."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    fds = len(os.listdir("/proc/self/fd"))
    yield
    left = [c for c in psutil.Process().children(recursive=True) if c.pid not in before]
    assert not left, f"processes left: {left}"
    assert len(os.listdir("/proc/self/fd")) <= fds
