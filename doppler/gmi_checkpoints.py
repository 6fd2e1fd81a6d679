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
            write_tensors(_file(self._folder, spec.gmi_id, saved.step), _arrays(spec, saved))
        while len(kept) > NUM_KEPT:
            old = kept.pop(0)
            if self._folder is not None and all(other.step != old.step for other in kept):
                _file(self._folder, spec.gmi_id, old.step).unlink(missing_ok=True)

    def check_free(self, read: Collection[Path]) -> None:
        """Checks that no checkpoints of another run would be lost.

        Args:
            read: Those that the GMIs go on from (`files_of`).

        Raises:
            ConfigError: If the folder has others.
        """
        if self._folder is None:
            return
        found = sorted(self._folder.resolve().glob(f"{PREFIX}*{SUFFIX}"))
        if others := [path.name for path in found if path not in read]:
            raise ConfigError(
                f"a run writes its checkpoints to a folder without any, or to the one whose "
                f"checkpoints it goes on from, and {str(self._folder)!r} has {others[0]!r}: call "
                f"resume_from with this folder before each run, name another, or remove it"
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
            known = {
                _file(self._folder, gmi_id, saved.step)
                for gmi_id, kept in self.history.items()
                for saved in kept
            }
            for path in self._folder.glob(f"{PREFIX}*{SUFFIX}"):
                if path not in known:
                    path.unlink()


def files_of(folder: Path, gmis: Iterable[GMISpec]) -> frozenset[Path]:
    """Returns the files of a folder that `read_history` reads, as absolute paths."""
    return frozenset(path for spec in gmis for path in _files(folder.resolve(), spec))


def read_history(folder: Path, gmis: Sequence[GMISpec]) -> History:
    """Returns what a folder holds of these GMIs, by their ids.

    Raises:
        FormatError: If a file is no checkpoint, or one of another role or class.
    """
    history: History = {}
    for spec in gmis:
        found = [_read(path, spec) for path in _files(folder, spec)]
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

    Members of a collective, and of collectives that share members, go on from one step, so that
    their calls pair up: the newest that all of them that save have reached and of which every role
    has a state. A member that has not saved it (only the first one may save what all have) goes on
    from what another member of its role has saved. A role that saves no arrays holds nobody back,
    and goes on at that step with an empty state. If there is no such step, all of them start from
    the beginning.

    Args:
        gmis: All GMIs.
        links: How they communicate.
        history: Their checkpoints.
        leaving: GMIs that will not go on; they hold nobody back.
    """
    points: dict[int, Saved] = {}
    for tied in _tied(len(gmis), links):
        savers = [gmi_id for gmi_id in tied if history.get(gmi_id)]
        full = {gmis[g].role for g in savers if any(saved.state for saved in history[g])}
        savers = [g for g in savers if gmis[g].role in full] or savers
        step = _common_step(gmis, tied, {g: history[g] for g in savers}, leaving)
        if step is None:
            continue
        own = {g: saved for g in savers for saved in history[g] if saved.step == step}
        for gmi_id in tied:
            role = gmis[gmi_id].role
            spare = next((own[g] for g in sorted(own) if gmis[g].role == role), Saved(step, {}))
            points[gmi_id] = own.get(gmi_id, spare)
    return points


def _common_step(
    gmis: Sequence[GMISpec],
    tied: Sequence[int],
    history: Mapping[int, Sequence[Saved]],
    leaving: Collection[int],
) -> int | None:
    """The newest step that members who stay have reached and that their roles have saved."""
    if not history:
        return None
    staying = {gmis[gmi_id].role for gmi_id in tied if gmi_id not in leaving}
    bound = min(history[g][-1].step for g in [g for g in history if g not in leaving] or history)
    steps: dict[str, set[int]] = {}
    for gmi_id, kept in history.items():
        if gmis[gmi_id].role in staying:
            steps.setdefault(gmis[gmi_id].role, set()).update(saved.step for saved in kept)
    common = set[int].intersection(*steps.values()) if steps else set()
    return max((step for step in common if step <= bound), default=None)


def _tied(num_gmis: int, links: Sequence[Link]) -> list[list[int]]:
    """Sets of GMIs that take their steps together."""
    label = list(range(num_gmis))
    for link in links:
        if isinstance(link, Collective):
            joined = {label[member] for member in link.members}
            label = [min(joined) if old in joined else old for old in label]
    return [[g for g in range(num_gmis) if label[g] == first] for first in sorted(set(label))]


def _file(folder: Path, gmi_id: int, step: int) -> Path:
    return folder / f"{PREFIX}{gmi_id}_{step}{SUFFIX}"


def _files(folder: Path, spec: GMISpec) -> list[Path]:
    return sorted(folder.glob(f"{PREFIX}{spec.gmi_id}_*{SUFFIX}"))


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
