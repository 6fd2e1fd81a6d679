"""All-reduce in shared memory: runs any `AllReduceSchedule` between the processes of one host.

Every tensor of the schedule has one place in shared memory and one generation word. A member
writes the place and then stores the number of the call into the word; readers wait for it. Parts
that no other member reads stay where they are, and a member's own part is read from its own array.

A place may be written again in call g + 1 when every reader of call g is done with it. For a reader
whose part is in what is written, that is certain (its part of call g + 1 comes after call g); for a
reading step that the writer's own results of call g depend on, too. Schedules with other readers
are refused. Stores become visible in program order (see `executor.channels`).
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from doppler.core.collective import AllReduceSchedule, chunk_bounds
from doppler.core.errors import ExecutionError
from executor.channels import check_memory_order
from executor.collectives.peers import (
    LINE_BYTES,
    LINE_WORDS,
    Peers,
    WaitOptions,
    check_names,
    check_part,
    peers_bytes,
)

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class AllReduceLayout:
    """Where everything lies; worked out from the schedule alone.

    Attributes:
        schedule: What is done. Steps at hosts are done by member chunk mod N.
        num_elements: Length of every member's part.
        dtype: Type of its elements, by name.
    """

    schedule: AllReduceSchedule
    num_elements: int
    dtype: str = "float32"

    @property
    def size_bytes(self) -> int:
        """Bytes of shared memory, from a multiple of 64."""
        return self.places[-1]

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Ends of the chunks, in elements."""
        return chunk_bounds(self.num_elements, self.schedule.num_chunks)

    @cached_property
    def first_word(self) -> int:
        """Offset of the words, one per tensor."""
        return peers_bytes(self.schedule.num_members)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """First byte of every tensor, and the end of all; a member's parts lie together."""
        schedule = self.schedule
        item = np.dtype(self.dtype).itemsize
        position = self.first_word + LINE_BYTES * (schedule.num_parts + len(schedule.steps))
        found: list[int] = []
        for member in range(schedule.num_members):
            found += [position + item * self.ends[chunk] for chunk in range(schedule.num_chunks)]
            assert found[-schedule.num_chunks] == position, member
            position += _aligned(item * self.num_elements)
        for step in schedule.steps:
            chunk = schedule.chunk(step.inputs[0])
            found.append(position)
            position += _aligned(item * (self.ends[chunk + 1] - self.ends[chunk]))
        return (*found, position)

    def worker(self, tensor: int) -> int:
        """Returns the member that makes a tensor."""
        home = self.schedule.home(tensor)
        return home if home >= 0 else self.schedule.chunk(tensor) % self.schedule.num_members


@dataclass(frozen=True, slots=True)
class _Action:
    """One step, or the entry of one chunk, as the member does it."""

    tensor: int
    chunk: int
    word: int
    out: Array
    inputs: tuple[tuple[int, Array | None], ...]  # None: the member's own part


class SharedAllReduce:
    """One member's end of an all-reduce.

    Attributes:
        part: The member's part in shared memory, [num_elements]: what is written here before
            `all_reduce(part)` is not copied, and the sum replaces it.

    Raises:
        ExecutionError: If the machine's store order does not suffice, names do not fit, or the
            schedule has a reader that may still be reading when its place is written again.
    """

    def __init__(
        self,
        layout: AllReduceLayout,
        memory: mmap.mmap,
        base: int,
        member: int,
        names: Sequence[str],
        options: WaitOptions | None = None,
    ) -> None:
        check_memory_order()
        schedule = layout.schedule
        check_names(names, schedule.num_members)
        self._layout = layout
        self._member = member
        self._words = memoryview(memory).cast("q")
        self._peers = Peers(memory, base, names, member, options or WaitOptions())
        self._call = 0
        self._bytes = np.frombuffer(memory, dtype=np.uint8)
        self._base = base
        start = base + layout.places[schedule.part(member, 0)]
        size = layout.num_elements * np.dtype(layout.dtype).itemsize
        self.part: Array = self._bytes[start : start + size].view(layout.dtype)
        self._slices = [
            slice(layout.ends[chunk], layout.ends[chunk + 1])
            for chunk in range(schedule.num_chunks)
        ]
        self._enters = self._entries()
        self._steps = self._own_steps()
        order = [(member + hop) % schedule.num_chunks for hop in range(schedule.num_chunks)]
        self._results = [
            (chunk, tensor, self._word(tensor), self._view(tensor))
            for chunk in order
            for tensor in (schedule.results[member][chunk],)
        ]

    def join(self) -> None:
        """Meets the other members (see `Peers.join`)."""
        self._peers.join()

    def all_reduce(self, values: Array) -> None:
        """Replaces `values` by the sum over all members, in the order of the schedule.

        Args:
            values: [num_elements] of the layout's type, contiguous; `part` avoids a copy.

        Raises:
            ExecutionError: If shape or type differ from the layout's.
            WorkerDiedError, WorkerHungError: Name the member that failed; the group is broken then.
        """
        check_part(values, self.part.shape[0], self.part.dtype)
        self._call += 1
        self._peers.enter(self._call)
        call, words, wait = self._call, self._words, self._peers.wait
        is_private = values is not self.part
        for action in self._enters:
            if is_private:
                np.copyto(action.out, values[self._slices[action.chunk]])
            words[action.word] = call
        for action in self._steps:
            # All inputs are there before the first write: until then others may still read.
            for tensor, view in action.inputs:
                if view is not None:
                    self._await_tensor(tensor)
            own = values[self._slices[action.chunk]]
            first, *others = [own if view is None else view for _, view in action.inputs]
            if not others:
                np.copyto(action.out, first)
            for array in others:
                np.add(first, array, out=action.out)
                first = action.out
            words[action.word] = call
        for chunk, tensor, word, view in self._results:
            if tensor < self._layout.schedule.num_parts:
                continue  # alone: the part is the sum
            if words[word] < call:
                wait(word, call, self._layout.worker(tensor), f"waiting for chunk {chunk}")
            np.copyto(values[self._slices[chunk]], view)
        self._peers.leave(call)

    def close(self) -> None:
        """Lets go of the shared memory."""
        self._peers.close()
        self._words.release()
        self._enters, self._steps, self._results = [], [], []
        del self.part, self._bytes

    def _await_tensor(self, tensor: int) -> None:
        word = self._word(tensor)
        if self._words[word] < self._call:
            what = f"waiting for chunk {self._layout.schedule.chunk(tensor)}"
            self._peers.wait(word, self._call, self._layout.worker(tensor), what)

    def _entries(self) -> list[_Action]:
        """The parts that others read, those of the next members' chunks first."""
        schedule, member = self._layout.schedule, self._member
        actions: list[_Action] = []
        for hop in range(1, schedule.num_chunks + 1):
            chunk = (member + hop) % schedule.num_chunks
            tensor = schedule.part(member, chunk)
            if self._reading_workers(tensor) != {member}:
                actions.append(self._action(tensor, ()))
        return actions

    def _own_steps(self) -> list[_Action]:
        schedule, member = self._layout.schedule, self._member
        actions: list[_Action] = []
        for index, step in enumerate(schedule.steps):
            tensor = schedule.num_parts + index
            if self._layout.worker(tensor) == member:
                actions.append(self._action(tensor, step.inputs))
        return actions

    def _action(self, tensor: int, inputs: tuple[int, ...]) -> _Action:
        schedule, member = self._layout.schedule, self._member
        chunk = schedule.chunk(tensor)
        own = schedule.part(member, chunk)
        unsure = self._unsure_readers(tensor)
        if unsure:
            raise ExecutionError(
                f"in shared memory a tensor is read by members whose part is in it or by steps "
                f"that its maker's results depend on, and in all-reduce {schedule.name!r} member "
                f"{min(unsure)} reads tensor {tensor} of member {member} otherwise"
            )
        return _Action(
            tensor=tensor,
            chunk=chunk,
            word=self._word(tensor),
            out=self._view(tensor),
            inputs=tuple((t, None if t == own else self._view(t)) for t in inputs),
        )

    def _reading_workers(self, tensor: int) -> set[int]:
        """Members that read a tensor: in a step that they do, or as a result."""
        schedule = self._layout.schedule
        return {
            self._layout.worker(schedule.num_parts + index)
            for index, step in enumerate(schedule.steps)
            if tensor in step.inputs
        } | {m for m, row in enumerate(schedule.results) if tensor in row}

    def _unsure_readers(self, tensor: int) -> set[int]:
        """Readers of a tensor that may still be at it when this member starts the next call."""
        schedule, member = self._layout.schedule, self._member
        within = self._members_in(tensor)
        needed = self._steps_behind(member)
        unsure = {m for m, row in enumerate(schedule.results) if tensor in row}
        for index, step in enumerate(schedule.steps):
            if tensor in step.inputs and index not in needed:
                unsure.add(self._layout.worker(schedule.num_parts + index))
        return unsure - within - {member}

    def _members_in(self, tensor: int) -> set[int]:
        schedule = self._layout.schedule
        if tensor < schedule.num_parts:
            return {schedule.home(tensor)}
        inputs = schedule.steps[tensor - schedule.num_parts].inputs
        return set().union(*(self._members_in(t) for t in inputs))

    def _steps_behind(self, member: int) -> set[int]:
        """Steps that must have ended when the member has all its results."""
        schedule = self._layout.schedule
        todo = [t for t in schedule.results[member] if t >= schedule.num_parts]
        found: set[int] = set()
        while todo:
            index = todo.pop() - schedule.num_parts
            if index in found:
                continue
            found.add(index)
            todo += [t for t in schedule.steps[index].inputs if t >= schedule.num_parts]
        return found

    def _word(self, position: int) -> int:
        return (self._base + self._layout.first_word) // 8 + LINE_WORDS * position

    def _view(self, tensor: int) -> Array:
        layout = self._layout
        chunk = layout.schedule.chunk(tensor)
        start = self._base + layout.places[tensor]
        size = (layout.ends[chunk + 1] - layout.ends[chunk]) * self.part.itemsize
        return self._bytes[start : start + size].view(layout.dtype)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // LINE_BYTES) * LINE_BYTES
