"""Compiled code follows the sources: also those of functions in other files."""

import os
import subprocess
import sys
from pathlib import Path

import numba

from simulator.machine_code import code_folder, source_digest

INNER = "import numba\n\n@numba.njit\ndef inner():\n    return {value}\n"
OUTER = (
    "from simulator.machine_code import cached\nfrom inner import inner\n\n"
    "@cached()\ndef outer():\n    return inner()\n"
)
PROGRAM = """
import sys
from pathlib import Path
import simulator.machine_code as code
code.code_folder.cache_clear()
digest = code.source_digest([Path.cwd()])
code.code_folder = lambda: Path({cache!r}) / digest
from outer import outer
print(outer())
"""


def run(folder: Path, cache: Path) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(cache=str(cache))],
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
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_the_digest_covers_every_source(tmp_path: Path) -> None:
    """A file without compiled functions may hold constants that they freeze into their code."""
    for name, text in (("kernel", "import numba\n"), ("columns", "NUM = 3\n")):
        (tmp_path / f"{name}.py").write_text(text)
        before = source_digest([tmp_path])
        (tmp_path / f"{name}.py").write_text(text + "# changed\n")
        assert source_digest([tmp_path]) != before


def test_other_peoples_caches_stay_where_they_are() -> None:
    assert code_folder().parent.name == "machine_code"
    assert str(code_folder()) != str(numba.config.CACHE_DIR)
