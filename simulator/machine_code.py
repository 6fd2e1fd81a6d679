"""Machine code on disk, apart for every state of the sources that it was compiled from.

numba compares the file of the function that Python calls, not those of the compiled functions that
it calls in turn: after an update of one of these, old code would run on, and nobody would notice.
So the folder of the code is named by the content of the function's file and of all files of the
project that it imports, directly or not: compiled functions freeze the constants, the named tuples
and the enums of these into their code, too. Files that define named tuples count for all code:
numba knows one by its types, not by its fields. A change elsewhere compiles nothing anew.
"""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

import doppler

IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n]*)|import[ \t]+([^\n]+))",
    re.MULTILINE,
)
COMMENT = re.compile(r"#[^\n]*")
NAMED_TUPLE = "(NamedTuple)"
PACKAGES = ("doppler", "simulator")
CACHE_VARIABLE = "XDG_CACHE_HOME"
LOADED_AT = time.time()
KEEP_S = 30 * 86_400
"""Code of other states of the sources is removed when it has not been written for so long."""

_F = TypeVar("_F", bound=Callable[..., Any])


def cached(**options: Any) -> Callable[[_F], _F]:
    """Compiles a function that Python calls, without the interpreter's lock; the code is kept.

    Args:
        **options: Those of `numba.njit` beside `cache` and `nogil`.
    """

    def decorate(function: _F) -> _F:
        source = Path(function.__code__.co_filename)
        compile_it = numba.njit(cache=is_as_loaded(source), nogil=True, **options)
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = before or str(code_folder(source))
        try:
            return cast(_F, compile_it(function))
        finally:
            numba.config.CACHE_DIR = before

    return decorate


def inlined(**options: Any) -> Callable[[_F], _F]:
    """Compiles a function that compiled functions call in their inner loops, in place of the call.

    A call copies every array of its named tuples and counts references to them, which costs more
    than a step of an episode. So there are neither calls nor counts, and the function must not
    make arrays, nor views of them.

    Args:
        **options: Those of `numba.njit` beside `cache`, `nogil` and `forceinline`.
    """
    return cached(forceinline=True, _nrt=False, **options)


@functools.cache
def code_folder(source: Path) -> Path:
    """Returns the folder for the machine code of a file's functions; numba makes it when needed."""
    base = (
        Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache") / "doppler" / "machine_code"
    )
    folder = base / import_digest(source, project_root())
    if not folder.exists():
        _remove_old(base)
    return folder


def project_root() -> Path:
    """Returns the folder that holds the project's packages; an installation has others in it."""
    return Path(doppler.__file__).parents[1]


@functools.cache
def is_as_loaded(source: Path) -> bool:
    """True unless a file that decides the code was written while this process runs.

    Such a file may be loaded in its older state, so code that is made with it is not kept.
    """
    files = code_files(source, project_root())
    return max(path.stat().st_mtime for path in files) < LOADED_AT


def import_digest(source: Path, root: Path) -> str:
    """Returns a digest of the files that decide the code of a file's functions.

    Args:
        source: A Python file.
        root: Folder of the project's packages; what else lies there is not followed.
    """
    digest = hashlib.sha256()
    for path in sorted(code_files(source, root)):
        digest.update(path.as_posix().removeprefix(root.resolve().as_posix()).encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def code_files(source: Path, root: Path) -> set[Path]:
    """Returns a file, everything that it imports, and what defines named tuples."""
    return imported_files(source, root) | _named_tuples(root.resolve())


def imported_files(source: Path, root: Path) -> set[Path]:
    """Returns a file and the files, beside it or in our packages, that it imports in turn."""
    folders = (root.resolve(), source.resolve().parent)
    found, queue = set[Path](), [source.resolve()]
    while queue:
        path = queue.pop()
        if path not in found:
            found.add(path)
            queue += _imports(path, folders)
    return found


@functools.cache
def _named_tuples(root: Path) -> frozenset[Path]:
    """The project's files that define a named tuple, which any compiled function may be given."""
    paths = (path for package in PACKAGES for path in (root / package).rglob("*.py"))
    return frozenset(path for path in paths if NAMED_TUPLE in path.read_text("utf-8"))


@functools.cache
def _imports(path: Path, folders: tuple[Path, ...]) -> tuple[Path, ...]:
    """What a file imports anywhere in it: our packages below the first folder, else beside."""
    names = set[str]()
    for module, members, modules in IMPORT.findall(COMMENT.sub("", path.read_text("utf-8"))):
        if module:
            words = re.findall(r"(\w+)(?:[ \t]+as[ \t]+\w+)?", members)
            names |= {module, *(f"{module}.{word}" for word in words)}
        else:
            names |= {part.split()[0] for part in modules.split(",") if part.strip()}
    root, beside = folders
    found = set[Path]()
    for name in names:
        parts = name.split(".")
        folder = root if parts[0] in PACKAGES else beside
        for count in range(1, len(parts) + 1):
            stem = folder.joinpath(*parts[:count])
            found |= {p for p in (stem.with_suffix(".py"), stem / "__init__.py") if p.is_file()}
    return tuple(found)


def source_digest(roots: list[Path]) -> str:
    """Returns a digest of all sources under `roots`."""
    digest = hashlib.sha256()
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _remove_old(base: Path) -> None:
    if not base.is_dir():
        return
    for folder in base.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process removes, too
            if time.time() - folder.stat().st_mtime > KEEP_S:
                shutil.rmtree(folder, ignore_errors=True)
