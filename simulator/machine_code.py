"""Machine code on disk, apart for every state of the sources that it was compiled from.

numba compares the file of the function that Python calls, not those of the compiled functions that
it calls in turn: after an update of one of these, old code would run on, and nobody would notice.
So the folder of the code is named by the content of all files that hold compiled functions.
"""

import functools
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

import doppler

CACHE_VARIABLE = "XDG_CACHE_HOME"
KEEP_S = 30 * 86_400
"""Code of other states of the sources is removed when it has not been written for so long."""

_F = TypeVar("_F", bound=Callable[..., Any])


def cached(**options: Any) -> Callable[[_F], _F]:
    """Compiles a function that Python calls, without the interpreter's lock; the code is kept.

    Args:
        **options: Those of `numba.njit` beside `cache` and `nogil`.
    """
    compile_it = numba.njit(cache=True, nogil=True, **options)

    def decorate(function: _F) -> _F:
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = before or str(code_folder())
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
def code_folder() -> Path:
    """Returns the folder of the present sources' machine code; numba makes it when it is needed."""
    base = (
        Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache") / "doppler" / "machine_code"
    )
    folder = base / source_digest([Path(__file__).parent, Path(doppler.__file__).parent])
    if not folder.exists():
        _remove_old(base)
    return folder


def source_digest(roots: list[Path]) -> str:
    """Returns a digest of all sources under `roots`.

    Compiled functions freeze the constants, the named tuples and the enums of other files into
    their code, so no file is left out.
    """
    digest = hashlib.sha256()
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _remove_old(base: Path) -> None:
    if not base.is_dir():
        return
    for folder in base.iterdir():
        if time.time() - folder.stat().st_mtime > KEEP_S:
            shutil.rmtree(folder, ignore_errors=True)
