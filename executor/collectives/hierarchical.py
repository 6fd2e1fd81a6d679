"""Local reduce and leader ring: members of one GPU add up there, one of each GPU meets the others.

The first member of every GPU is its leader. In a call a member copies its array into its row of
mapped memory; the leader adds the rows of its GPU in the order of the members; the leaders' sums
are added by a library between the GPUs; each leader copies the result into a row of its own, and
the others of its GPU read it there. A GPU with one member has no rows, and one GPU has no ring. So
all members of all GPUs get the same bits if all leaders do.

A row is written again one call later: a part after its member has read the result that it went
into, a result after all readers have entered that call. On a GPU *not yet run on hardware*; the
same steps run on host memory in the tests.

Source: GMI-DRL, section 5 (its IP and RP, with the local step in device memory); CUDA runtime API,
interprocess communication; NCCL user guide.
"""

from collections.abc import Sequence
from typing import Any

from executor.channels import check_memory_order
from executor.collectives.peers import check_part
from executor.collectives.polled import Fence, Library, PolledGroup
from executor.collectives.process_group import Meeting, ProcessGroupAllReduce
from executor.collectives.rows import OpenRows

PART, RESULT = 0, 1
"""What a member's two rows hold."""


def groups_by_parent(parents: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Returns the members of every processor, in the order of its first member.

    Args:
        parents: Processor that each member is cut from.
    """
    groups: dict[str, list[int]] = {}
    for member, parent in enumerate(parents):
        groups.setdefault(parent, []).append(member)
    return tuple(tuple(members) for members in groups.values())


class HierarchicalAllReduce(ProcessGroupAllReduce):
    """One member's end of an all-reduce by local reduce and leader ring.

    Args:
        parents: Processor that each member is cut from.
        num_elements: Length of every member's tensor.
        dtype: torch's name of its type.
        open_rows: Opens the rows of the members of one processor.
        fence: Marks the work on tensors that was started so far.
        ring: Adds up among the leaders.
        meeting: Where all members meet.

    Raises:
        ExecutionError: If the machine's store order does not suffice, or torch lacks the ring's
            library where there are two processors.
    """

    def __init__(
        self,
        parents: Sequence[str],
        num_elements: int,
        dtype: str,
        open_rows: OpenRows,
        fence: Fence,
        ring: Library,
        meeting: Meeting,
    ) -> None:
        check_memory_order()
        groups = groups_by_parent(parents)
        self._local = next(group for group in groups if meeting.member in group)
        self._leaders = [group[0] for group in groups]
        self._leader = self._local[0]
        self._in_ring = len(groups) > 1 and meeting.member == self._leader
        self._open_rows, self._fence, self._library = open_rows, fence, ring
        self._rows: Sequence[Any] = ()
        super().__init__(
            ring.title, lambda found: not self._in_ring or ring.is_available(found), meeting
        )
        self._num_elements, self._dtype = num_elements, getattr(self._torch, dtype)

    def all_reduce(self, values: Any) -> None:
        """Replaces `values` by the sum over all members.

        Args:
            values: Tensor [num_elements] of the group's type on this process's device.

        Raises:
            ExecutionError: If shape or type differ from the group's; or all have come, and it is
                not done before the deadline.
            WorkerDiedError, WorkerHungError: Name the member that failed; the group is broken then.
        """
        check_part(values, self._num_elements, self._dtype, "tensor")
        reduced, published = self._call + 1, self._call + 2
        if self._peers.member == self._leader:
            self._together(
                lambda: self._lead(values, reduced, published), "adding up its GPU", num_calls=2
            )
            return
        self._rows[self._local.index(self._peers.member)][PART].copy_(values)
        self._finish("copying to its row")
        # Entering the call says that the row is written.
        self._together(lambda: self._follow(values, published), "waiting for its GPU", num_calls=2)

    def close(self) -> None:
        """Leaves the group."""
        if self._group is not None:
            self._group.abort()
        self._rows = ()
        super().close()

    def _prepare(self) -> None:
        if self._in_ring:
            self._library.prepare()

    def _open(self, store: Any, member: int, size: int) -> PolledGroup | None:
        """Opens the rows of this GPU and, for its leader, the ring."""
        prefix = self._distributed.PrefixStore
        if len(self._local) > 1:
            local = prefix(f"rows of {self._leader}", store)
            self._rows = self._open_rows(local, self._local.index(member), len(self._local))
        if member != self._leader:
            opened = f"waiting until {self._peers.names[self._leader]!r} has met other leaders"
            self._peers.wait_for(
                lambda: self._peers.has_left(self._leader, 1), opened, self._join_deadline_ns
            )
        if not self._in_ring:
            return None
        ring = PolledGroup(self._library, self._peers)
        rank = self._leaders.index(member)
        ring.open(prefix("ring", store), rank, len(self._leaders), self._join_deadline_ns)
        return ring

    def _lead(self, values: Any, reduced: int, published: int) -> None:
        for row, member in zip(self._rows[1:], self._local[1:], strict=True):
            self._peers.wait_entered(member, reduced)
            values.add_(row[PART])
        if self._group is not None:
            self._group.all_reduce(values)
        if len(self._rows) > 1:
            self._rows[0][RESULT].copy_(values)
        self._finish("adding up its GPU")
        self._peers.enter(published)

    def _follow(self, values: Any, published: int) -> None:
        leader = f"waiting for the sum of {self._peers.names[self._leader]!r}"
        self._peers.wait_for(lambda: self._peers.has_entered(self._leader, published), leader)
        values.copy_(self._rows[0][RESULT])
        self._finish("copying the sum")

    def _finish(self, what: str) -> None:
        self._peers.wait_for(self._fence(), what)
