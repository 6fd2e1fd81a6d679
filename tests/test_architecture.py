"""The layers of docs/design.md: what each package may load, seen from a fresh interpreter."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def modules_after(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=ROOT,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import doppler", ("numpy", "torch", "doppler.core")),
        ("import doppler.core.dispatcher, doppler.core.serialize", ("numpy", "torch", "networkx")),
        ("import simulator.compiled, simulator.runtime", ("torch", "executor", "doppler.planners")),
        ("import doppler.gmi", ("torch", "numba", "doppler.planners")),
        ("import executor.runtime", ("torch", "simulator", "doppler.planners", "numba")),
        ("import doppler.planners.heft", ("torch", "executor")),
    ],
)
def test_a_package_loads_only_what_its_layer_may(code, absent):
    loaded = modules_after(code)
    assert not loaded & set(absent)


def test_every_package_has_its_place_in_the_import_contracts():
    packages = {f"doppler.{path.parent.name}" for path in ROOT.glob("doppler/*/__init__.py")}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = [
        ".".join(module.split(".")[:2])  # a part of a package stands for it
        for contract in contracts
        if contract["type"] == "layers"
        for layer in contract["layers"]
        for module in layer.split(" | ")
    ]
    assert packages <= set(layers)
    below_the_api = packages & set(layers[layers.index("doppler.api") + 1 :])
    chooses_no_runtime = next(c for c in contracts if "runtime" in c["name"])
    assert set(chooses_no_runtime["source_modules"]) == below_the_api - {"doppler.core"}
    for package in ("doppler.core", "simulator", "executor"):
        mine = next(c for c in contracts if c.get("source_modules") == [package])
        others = {"simulator", "executor", "doppler.*"} - {package}
        assert others <= set(mine["forbidden_modules"])


def test_runtimes_are_made_in_the_api_only():
    """Two exceptions, each with its reason.

    `doppler verify` compares the engines, so it makes both itself. `doppler.gmi` is loaded by every
    process of a GMI, with the user's module, so it cannot load the API with its planners.
    """
    engines = {"SimPyRuntime", "CompiledRuntime", "CoreExecutor", "CompiledScorer", "ReplicaScorer"}
    makers = {
        path.name
        for path in ROOT.glob("doppler/*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in engines
    }
    assert makers == {"api.py", "verify.py", "gmi_choice.py"}


@pytest.mark.parametrize("package", ["doppler", "simulator", "executor"])
def test_packages_come_from_this_tree(package):
    module = __import__(package)
    assert Path(module.__file__).resolve().parent == ROOT / package


def test_no_file_is_longer_than_400_lines():
    long = {
        str(path.relative_to(ROOT)): count
        for folder in ("doppler", "simulator", "executor")
        for path in (ROOT / folder).rglob("*.py")
        if (count := len(path.read_text("utf-8").splitlines())) > 400
    }
    assert not long
