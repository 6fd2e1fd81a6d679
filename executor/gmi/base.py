"""The base class of user-written GMIs.

Source: GMI-DRL, listing 1 (role, GMI id, GPU id; run, train and collective supplied by the user).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from doppler.core.errors import ExecutionError, nearest
from executor.collectives.kernels import AllReduce
from executor.control import ControlSocket
from executor.experience.flow import Batcher, Packer
from executor.experience.weights import WeightPublisher, WeightReader
from executor.gmi.communication import GMISpec
from executor.gmi.messages import Reported, Saved
from executor.gmi.spans import COLLECTIVE, FIRST_LINK, TRAIN, SpanLog
from executor.gmi.status import StatusBoard

End = AllReduce | Packer | Batcher | WeightReader
Kind = TypeVar("Kind", AllReduce, Packer, Batcher, WeightReader, WeightPublisher)


@dataclass(frozen=True, kw_only=True)
class GMIContext:
    """What a GMI is given by its runtime.

    Attributes:
        gmis: All GMIs.
        gmi_id: This one.
        ends: This GMI's ends of its links, by name, with the link's position.
        board: Where it says what it does.
        control: The way to the parent.
        seed: Of the whole set.
        attempt: How often the set was started before, in the same run.
        deadline_ns: How long others are waited for.
        spans: Where it is written down what it does when.
    """

    gmis: tuple[GMISpec, ...]
    gmi_id: int
    ends: Mapping[str, tuple[int, End]]
    board: StatusBoard
    control: ControlSocket
    seed: int
    attempt: int
    deadline_ns: int
    spans: SpanLog


class GMI:
    """A GPU multiplexing instance: one process with one role on one share of the hardware.

    A subclass overrides `run`, and, where it helps, `setup`, `train` and `collective`. It is
    constructed by the runtime, in the process that is bound to its device.

    Attributes:
        gmi_id: Its position among all GMIs.
        role: What it does.
        device: Its share of the hardware.
        group: Ids of all GMIs of its role, itself included.
        rank: Its position in that group.
        settings: What the manager was given for it.
        first_step: Step of the checkpoint that it goes on from, else 0.
        state: Arrays of that checkpoint, or None; {} if its role had saved nothing while others of
            its collective go on from a step.
        attempt: How often all GMIs were started before because some failed, in the same run.
        rng: Random numbers of its own: seed, id and attempt decide them.
    """

    def __init__(self, context: GMIContext) -> None:
        own = context.gmis[context.gmi_id]
        self._context = context
        self.gmi_id, self.role, self.device = own.gmi_id, own.role, own.device
        self.group = tuple(spec.gmi_id for spec in context.gmis if spec.role == own.role)
        self.rank = self.group.index(own.gmi_id)
        self.settings = own.settings
        self.first_step, self.state = own.first_step, own.state
        self.attempt = context.attempt
        again = [self.attempt] if self.attempt else []
        self.rng = np.random.default_rng([context.seed, own.gmi_id, *again])
        # Of the instance, so that the user's own classes need not think of it.
        self.train = context.spans.wrapped(TRAIN, self.train)  # type: ignore[method-assign]
        self.collective = context.spans.wrapped(  # type: ignore[method-assign]
            COLLECTIVE, self.collective
        )

    # -- what the user overrides -----------------------------------------------------------------

    def setup(self) -> None:
        """Makes environments, networks and buffers; called once, before all GMIs meet."""

    def run(self, num_episodes: int, num_steps: int) -> Any:
        """Does the work of the role; what it returns is the GMI's result.

        Raises:
            NotImplementedError: If the class does not override it.
        """
        raise NotImplementedError(f"{type(self).__name__} overrides run(num_episodes, num_steps)")

    def train(self, *arguments: Any) -> Any:
        """Does one training step; called by the user's own `run`.

        Raises:
            NotImplementedError: If the class calls it and does not override it.
        """
        raise NotImplementedError(f"{type(self).__name__} calls train and does not override it")

    def collective(self, values: npt.NDArray[Any]) -> None:
        """Replaces `values` by the sum over the group; the default all-reduces at once."""
        self.all_reduce(values)

    @property
    def is_communicating(self) -> bool:
        """True while another thread of this GMI is within a link."""
        return self._context.board.read(self.gmi_id).waits

    def first_step_of(self, role: str) -> int:
        """Returns the least step that a GMI of a role goes on from, 0 if there is none."""
        steps = [spec.first_step for spec in self._context.gmis if spec.role == role]
        return min(steps, default=0)

    # -- what the runtime offers -----------------------------------------------------------------

    def all_reduce(self, values: Any, name: str | None = None) -> None:
        """Replaces an array by its sum over the members of a collective, the same bits everywhere.

        Args:
            values: [num_elements] of the collective's type: a numpy array; a torch tensor on the
                GPU for the kernels of GPUs.
            name: Which collective; None = the only one that this GMI belongs to.

        Raises:
            WorkerDiedError, WorkerHungError: Name the member that failed.
        """
        index, end = self._end(AllReduce, name)  # type: ignore[type-abstract]
        with self._within(index):
            end.all_reduce(values)

    def send(
        self, experience: Mapping[str, np.ndarray], version: int, name: str | None = None
    ) -> None:
        """Adds records, [n, *shape] per field, to a channel; waits where it is full.

        Args:
            experience: Field -> records.
            version: Version of the weights that made them.
            name: Which channel; None = the only one that this GMI produces for.

        Raises:
            WorkerHungError: If no consumer takes anything before the deadline.
        """
        index, end = self._end(Packer, name)
        with self._within(index):
            end.append(experience, version)

    def flush(self, name: str | None = None) -> None:
        """Hands over what a channel holds back because its batch is not full."""
        self._end(Packer, name)[1].flush()

    def receive(self, out: tuple[np.ndarray, ...], version: int, name: str | None = None) -> None:
        """Fills arrays [records, *shape], one per field, from all producers in turns.

        Args:
            out: Arrays, in the channel's order of fields.
            version: Version of this GMI's weights, to account staleness.
            name: Which channel; None = the only one that this GMI consumes.

        Raises:
            WorkerHungError: If no producer adds a record for as long as the deadline.
        """
        index, end = self._end(Batcher, name)
        with self._within(index):
            end.collect(out, version, self._context.deadline_ns)

    def staleness(self, name: str | None = None) -> dict[int, int]:
        """Returns records received so far, by versions that their weights were behind ours."""
        return dict(self._end(Batcher, name)[1].staleness)

    def publish_weights(self, values: npt.NDArray[Any], name: str | None = None) -> int:
        """Publishes weights and returns their version, 1 for the first.

        Args:
            values: Array of any type and shape, of as many bytes as was declared, without gaps.
            name: Which weights; None = the only ones that this GMI publishes.

        Raises:
            ExecutionError: If it is none, or this GMI is not the one that publishes them.
        """
        self._context.board.step()
        index, end = self._end(WeightPublisher, name)
        with self._context.spans.span(FIRST_LINK + index):
            return end.publish(values)

    def read_weights(self, out: npt.NDArray[Any], name: str | None = None) -> int:
        """Copies the newest weights and returns their version; 0 leaves `out` as it is.

        Args:
            out: Array of any type and shape, of as many bytes as was declared, without gaps.
            name: Which weights; None = the only ones that this GMI reads.

        Raises:
            ExecutionError: If it is none, or this GMI is not one that reads them.
        """
        self._context.board.step()
        index, end = self._end(WeightReader, name)
        with self._context.spans.span(FIRST_LINK + index):
            return end.read(out)

    def report(self, **values: Any) -> None:
        """Sends values to the manager's `on_report`."""
        self._context.board.step()
        self._context.control.send(Reported(values))

    def checkpoint(self, step: int, /, **state: np.ndarray) -> None:
        """Hands the manager all that is needed to go on from a step."""
        self._context.board.step()
        self._context.control.send(Saved(step, state))

    @contextmanager
    def _within(self, index: int) -> Iterator[None]:
        self._context.board.enter(index)
        with self._context.spans.span(FIRST_LINK + index):
            yield
        self._context.board.leave()

    def _end(self, kind: type[Kind], name: str | None) -> tuple[int, Kind]:
        ends = self._context.ends
        fitting = [key for key, (_, end) in ends.items() if isinstance(end, kind)]
        if name is None and len(fitting) == 1:
            name = fitting[0]
        if name is None or name not in fitting:
            choice = "has none" if name is None and not fitting else f"asks for {name!r}"
            raise ExecutionError(
                f"GMI {self.gmi_id} ({self.role}) {choice} as {kind.__name__}; "
                f"{nearest(name or '', fitting)}"
            )
        index, end = ends[name]
        assert isinstance(end, kind)
        return index, end
