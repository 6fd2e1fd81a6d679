"""Checkpoints of user-written GMIs: the last two of each, in memory and, where asked, in a folder.

Members of a collective go on from one common step, which is why two are kept: of members that take
each step together, one may have saved a step more than another. GMIs that share no collective each
go on from their own newest. In the folder a checkpoint is a safetensors file of the executor's
format (`executor.checkpoint`), written whole or not at all.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from doppler.core.errors import ConfigError, FormatError
from doppler.tensor_file import write_tensors
from executor.checkpoint import Checkpoint
from executor.gmi.communication import Collective, GMISpec, Link
from executor.gmi.messages import Saved

NUM_KEPT = 2
PREFIX, SUFFIX = "gmi", ".safetensors"
STATE = "state"
History = dict[int, list[Saved]]
"""GMI id -> its last checkpoints, oldest first."""


class CheckpointStore:
    """Keeps the checkpoints of a set of GMIs.

    Args:
        folder: Where they are written too; None = in memory only. Made if it is missing.

    Attributes:
        history: What is kept.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.history: History = {}
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def put(self, spec: GMISpec, saved: Saved) -> None:
        """Keeps a checkpoint of a GMI; the oldest one goes.

        Raises:
            OSError: If it cannot be written.
        """
        kept = self.history.setdefault(spec.gmi_id, [])
        kept.append(saved)
        if self._folder is not None:
            write_tensors(self._path(spec.gmi_id, saved.step), _arrays(spec, saved))
        while len(kept) > NUM_KEPT:
            old = kept.pop(0)
            if self._folder is not None and all(other.step != old.step for other in kept):
                self._path(spec.gmi_id, old.step).unlink(missing_ok=True)

    def check_free(self, gmis: Iterable[GMISpec]) -> None:
        """Checks that no checkpoints of an earlier run would be lost.

        Raises:
            ConfigError: If there are some, and none of these GMIs goes on from a checkpoint.
        """
        if self._folder is None or any(spec.state is not None for spec in gmis):
            return
        if found := sorted(self._folder.glob(f"{PREFIX}*{SUFFIX}")):
            raise ConfigError(
                f"a run from the beginning writes its checkpoints to a folder without any, and "
                f"{str(self._folder)!r} has {found[0].name!r}: call resume_from, or remove it"
            )

    def start_from(self, gmis: Iterable[GMISpec]) -> None:
        """Forgets everything but what these GMIs go on from: their ids may be others than before.

        Raises:
            OSError: If that cannot be written.
        """
        self.history.clear()
        for spec in gmis:
            if spec.state is not None:
                self.put(spec, Saved(spec.first_step, spec.state))
        if self._folder is not None:
            known = {self._path(g, s.step) for g, kept in self.history.items() for s in kept}
            for path in self._folder.glob(f"{PREFIX}*{SUFFIX}"):
                if path not in known:
                    path.unlink()

    def _path(self, gmi_id: int, step: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{PREFIX}{gmi_id}_{step}{SUFFIX}"


def read_history(folder: Path, gmis: Sequence[GMISpec]) -> History:
    """Returns what a folder holds of these GMIs, by their ids.

    Raises:
        FormatError: If a file is no checkpoint, or one of another role or class.
    """
    history: History = {}
    for spec in gmis:
        found = [_read(path, spec) for path in folder.glob(f"{PREFIX}{spec.gmi_id}_*{SUFFIX}")]
        if found:
            history[spec.gmi_id] = sorted(found, key=lambda saved: saved.step)
    return history


def resume_points(
    gmis: Sequence[GMISpec],
    links: Sequence[Link],
    history: Mapping[int, Sequence[Saved]],
    leaving: Collection[int] = (),
) -> dict[int, Saved]:
    """Returns what each GMI goes on from, by its id; who is missing starts from the beginning.

    Members of a collective, and of collectives that share members, go on from the newest step that
    all of them that save have reached. A member that has not saved it (only the first one may save
    what all have) goes on from what another member of its role has saved.

    Args:
        gmis: All GMIs.
        links: How they communicate.
        history: Their checkpoints.
        leaving: GMIs that will not go on; they hold nobody back.
    """
    points: dict[int, Saved] = {}
    for tied in _tied(len(gmis), links):
        savers = [gmi_id for gmi_id in tied if history.get(gmi_id)]
        staying = [gmi_id for gmi_id in savers if gmi_id not in leaving] or savers
        if not staying:
            continue
        step = min(history[gmi_id][-1].step for gmi_id in staying)
        own = {g: saved for g in savers for saved in history[g] if saved.step == step}
        for gmi_id in tied:
            role = gmis[gmi_id].role
            spare = next((own[g] for g in sorted(own) if gmis[g].role == role), None)
            if (found := own.get(gmi_id, spare)) is not None:
                points[gmi_id] = found
    return points


def _tied(num_gmis: int, links: Sequence[Link]) -> list[list[int]]:
    """Sets of GMIs that take their steps together."""
    label = list(range(num_gmis))
    for link in links:
        if isinstance(link, Collective):
            joined = {label[member] for member in link.members}
            label = [min(joined) if old in joined else old for old in label]
    return [[g for g in range(num_gmis) if label[g] == first] for first in sorted(set(label))]


def _arrays(spec: GMISpec, saved: Saved) -> dict[str, np.ndarray]:
    state = {key: np.array(value, order="C") for key, value in saved.state.items()}
    return Checkpoint(
        graph_digest=_owner(spec), iteration=saved.step, groups={STATE: state}, tokens={}
    ).to_arrays()


def _read(path: Path, spec: GMISpec) -> Saved:
    try:
        checkpoint = Checkpoint.from_arrays(load_file(path))
    except (OSError, SafetensorError) as error:
        raise FormatError(f"checkpoint {str(path)!r} cannot be read: {error}") from error
    if checkpoint.graph_digest != _owner(spec):
        raise FormatError(
            f"checkpoint {str(path)!r} is of {checkpoint.graph_digest}, and {spec.title} is of "
            f"{_owner(spec)}"
        )
    return Saved(checkpoint.iteration, checkpoint.groups.get(STATE, {}))


def _owner(spec: GMISpec) -> str:
    """Stands where the checkpoint of a job names its graph."""
    return f"class {spec.class_name!r} in role {spec.role!r}"
