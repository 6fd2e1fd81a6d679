"""Compiled code follows the sources: also those of functions in other files."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

import doppler
from simulator import machine_code
from simulator.machine_code import code_folder, import_digest, imported_files, source_digest

INNER = "import numba\n\n@numba.njit\ndef inner():\n    return {value}\n"
OUTER = (
    "from simulator.machine_code import cached\nfrom inner import inner\n\n"
    "@cached()\ndef outer():\n    return inner()\n"
)
PROGRAM = """
import os
os.environ["XDG_CACHE_HOME"] = {cache!r}
{before}
from outer import outer
print(outer())
"""


def run(folder: Path, cache: Path, before: str = "") -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(cache=str(cache), before=before)],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}:{Path(__file__).parents[2]}"},
        timeout=120,
    )
    return int(done.stdout)


def test_a_function_in_another_file_that_changes_is_compiled_anew(tmp_path: Path) -> None:
    """Seen to fail with plain `numba.njit(cache=True)`: the second run still gives 1."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "outer.py").write_text(OUTER)
    for value in (1, 2):
        (folder / "inner.py").write_text(INNER.format(value=value))
        assert run(folder, tmp_path / "cache") == value
    assert len(list((tmp_path / "cache" / "doppler" / "machine_code").iterdir())) == 2


SOURCES = {
    "doppler/__init__.py": "",
    "doppler/kernel.py": "from doppler.steps import (  # of one (fast) step\n    a,\n    b,\n)\n",
    "doppler/steps.py": "from doppler import columns as c\nimport doppler.sizes, doppler.more\n",
    "doppler/columns.py": "NUM = 3\n",
    "doppler/sizes.py": "def late():\n    from doppler.enums import Mode\n",
    "doppler/more.py": "import os\n",
    "doppler/enums.py": "",
    "doppler/elsewhere.py": "from doppler.kernel import run\n",
    "doppler/tuples.py": "class Table(NamedTuple):\n    a: int\n    b: int\n",
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_digest_covers_imports_and_named_tuples_and_nothing_else(
    tmp_path: Path, name: str
) -> None:
    """A file without compiled functions may hold constants that they freeze into their code."""
    for path, text in SOURCES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    kernel = tmp_path / "doppler" / "kernel.py"
    before = import_digest(kernel, tmp_path)
    assert import_digest(kernel, tmp_path) == before
    (tmp_path / name).write_text(SOURCES[name] + "# changed\n")
    is_covered = name != "doppler/elsewhere.py"
    assert (import_digest(kernel, tmp_path) != before) is is_covered


def test_what_is_imported_is_what_python_loads() -> None:
    """Every module of the project that a compiled file's import loads is in its digest."""
    root = Path(doppler.__file__).parents[1]
    program = (
        "import sys; before = set(sys.modules); import {name}; "
        "print(*(sys.modules[m].__file__ for m in set(sys.modules) - before "
        "if m.split('.')[0] in ('doppler', 'simulator') and sys.modules[m].__file__), sep='\\n')"
    )
    for name in ("simulator.engine.kernel", "doppler.policies.episodes"):
        done = subprocess.run(
            [sys.executable, "-c", program.format(name=name)],
            capture_output=True,
            text=True,
            check=True,
            cwd=root,
            timeout=120,
        )
        loaded = {Path(line).resolve() for line in done.stdout.splitlines()}
        assert len(loaded) > 3
        assert loaded <= imported_files(root.joinpath(*name.split(".")).with_suffix(".py"), root)


def test_other_packages_of_an_installation_are_not_followed(tmp_path: Path) -> None:
    for path in ("doppler/kernel.py", "numba/__init__.py", "numba/core.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("import numba.core\nfrom numba import core\n")
    kernel = tmp_path / "doppler" / "kernel.py"
    assert imported_files(kernel, tmp_path) == {kernel}


def test_what_is_edited_while_a_process_runs_is_not_kept(tmp_path: Path) -> None:
    """Seen to fail without the check: the second process ran the first one's `inner`."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "outer.py").write_text(OUTER)
    inner = folder / "inner.py"
    inner.write_text(INNER.format(value=1))
    edit = (
        f"import inner, pathlib; pathlib.Path({str(inner)!r}).write_text({INNER.format(value=2)!r})"
    )
    assert run(folder, tmp_path / "cache", f"import simulator.machine_code; {edit}") == 1
    assert run(folder, tmp_path / "cache") == 2


def test_the_digest_of_folders_covers_every_source(tmp_path: Path) -> None:
    for name, text in (("kernel", "import numba\n"), ("columns", "NUM = 3\n")):
        (tmp_path / f"{name}.py").write_text(text)
        before = source_digest([tmp_path])
        (tmp_path / f"{name}.py").write_text(text + "# changed\n")
        assert source_digest([tmp_path]) != before


def test_other_peoples_caches_stay_where_they_are() -> None:
    folder = code_folder(Path(machine_code.__file__))
    assert folder.parent.name == "machine_code"
    assert str(folder) != str(numba.config.CACHE_DIR)
