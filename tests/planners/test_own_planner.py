"""The planner of docs/planners.md, installed as a package of its own, conforms and has its name."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "planners.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def installed(tmp_path):
    """The folder of the package and what `pip` leaves beside it."""
    (_, planner), (_, settings), (_, check) = BLOCKS
    project = tomllib.loads(settings)["project"]
    (tmp_path / "least_loaded.py").write_text(planner)
    info = tmp_path / f"least_loaded-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    points = project["entry-points"]["doppler.planners"]
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[doppler.planners]", *lines]))
    (tmp_path / "check.py").write_text(check)
    return tmp_path


def run(folder, *words):
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}:{PAGE.parents[1]}"},
        check=False,
    )


@pytest.mark.timeout(220)
def test_the_planner_of_the_page_conforms(installed):
    done = run(installed, "check.py")
    assert done.returncode == 0, done.stderr[-2000:]
    planner = installed / "least_loaded.py"
    planner.write_text(planner.read_text().replace("mask.complete(", "(lambda w: w[:, 0])("))
    broken = run(installed, "check.py")
    assert "ConformanceError: least_loaded on pins: a budget of 24 gives a plan" in broken.stderr


def test_the_suite_of_the_project_sees_installed_planners(installed):
    words = ["-c", "from tests.planners.test_conformance import NAMES; print(*NAMES)"]
    done = run(installed, *words)
    assert "least_loaded" in done.stdout.split(), done.stderr[-2000:]
    assert "heft" in done.stdout.split()
