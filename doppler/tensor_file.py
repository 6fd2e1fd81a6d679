"""Tensor files: safetensors, written whole or not at all."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes a safetensors file: it is either the old one or the whole new one.

    Raises:
        OSError: If the disk is full, or the file cannot be written for another reason.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    try:
        save_file(dict(tensors), name)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, SafetensorError):
            raise OSError(f"{str(path)!r} cannot be written: {error}") from error
        raise
