"""The processes of a set of GMIs: started together, watched, ended together."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

from doppler.core.cluster import Cluster
from doppler.core.errors import ExecutionError, KernelError, WorkerDiedError, WorkerHungError
from executor.control import ControlClosedError
from executor.gmi.communication import Communication, GMISpec
from executor.gmi.messages import Begin, Failed, Finished, Ready, Reported, Run, Saved
from executor.gmi.status import Status, StatusBoard
from executor.launch.local import GMI_WORKER, WorkerProcess, start_workers
from executor.launch.seats import Seating
from executor.preflight import check_needs, needs_of
from executor.shared_memory import allocate, map_all
from executor.waiting import wait_for_answers
from executor.workers.share import GpuShare

START_S = 120.0
BLAME_S = 1.0
"""Who says that another has failed is believed after so long; the other usually tells by itself."""
WAIT_SLACK_S = 2.0
"""Who waits for others says within the deadline and so long that it was in vain; or it hangs."""

Answer = TypeVar("Answer", Ready, Finished)
Report = Callable[[int, Mapping[str, Any]], None]
Keep = Callable[[int, Saved], None]


@dataclass(slots=True)
class _Seen:
    """A GMI's status, and bytes that had come from it, as they were last seen to change."""

    status: Status
    num_received: int
    since: float


class GMITeam:
    """One process per GMI.

    Args:
        gmis: Who they are.
        communication: Their links.
        seed: Of the whole set.
        deadline_s: Who is silent for so long counts as hung.
        shm_dir: Mount for the shared memory.
        attempt: How often they were started before, in the same run.
        limit_memory: A core group may take no more private memory than its device owns.

    Attributes:
        failed: GMIs that died or hung.

    Raises:
        CapacityError: If memory, shared memory or file descriptors do not suffice.
    """

    def __init__(
        self,
        gmis: tuple[GMISpec, ...],
        communication: Communication,
        seed: int,
        deadline_s: float,
        shm_dir: str,
        attempt: int = 0,
        limit_memory: bool = False,
    ) -> None:
        self.failed: set[int] = set()
        self._are_ready = False
        self._gmis = gmis
        self._communication = communication
        self._deadline_s = deadline_s
        self._workers: list[WorkerProcess] = []
        cluster = Cluster(name="GMIs", devices=tuple(spec.device for spec in gmis))
        self._seating = Seating(cluster)
        purpose, size = f"the communication of {len(gmis)} GMIs", communication.size_bytes
        seating = self._seating
        check_needs(
            needs_of(
                cluster,
                seating.seats,
                seating.inventory,
                shm_dir,
                size,
                purpose,
                num_watched=communication.num_watched,
            )
        )
        shared_fd = allocate(shm_dir, size, purpose)
        store_fd = os.memfd_create("store") if communication.needs_store else -1
        try:
            self._memory = map_all(shared_fd)
            self._board = StatusBoard(self._memory)
            fds = (shared_fd, store_fd) if store_fd >= 0 else (shared_fd,)
            by_gmi: dict[int, WorkerProcess] = {}
            shares: dict[int, GpuShare | None] = {}
            for seat in self._seating.seats:
                workers = start_workers(seat, cluster, fds, GMI_WORKER, limit_memory)
                self._workers += workers
                by_gmi |= dict(zip(seat.devices, workers, strict=True))
                shares |= {gmi_id: seat.share_of(gmi_id) for gmi_id in seat.devices}
            self._workers = [by_gmi[spec.gmi_id] for spec in gmis]
            for spec in gmis:
                begin = Begin(
                    gmis=tuple(g if g is spec else replace(g, state=None) for g in gmis),
                    gmi_id=spec.gmi_id,
                    communication=communication,
                    seed=seed,
                    deadline_ns=int(deadline_s * 1e9),
                    share=shares[spec.gmi_id],
                    store_fd=store_fd,
                    attempt=attempt,
                )
                with contextlib.suppress(ControlClosedError):  # told of when it is awaited
                    self._workers[spec.gmi_id].control.send(begin)
        except BaseException:
            self.end()
            raise
        finally:
            os.close(shared_fd)
            if store_fd >= 0:
                os.close(store_fd)

    def run(
        self,
        num_episodes: int,
        num_steps: int,
        on_report: Report | None = None,
        on_saved: Keep | None = None,
    ) -> tuple[Finished, ...]:
        """Runs all and returns how they ended; may be called again when they have.

        Args:
            num_episodes: Handed to every GMI's `run`.
            num_steps: Likewise.
            on_report: Called with what GMIs report.
            on_saved: Called with their checkpoints.

        Raises:
            WorkerDiedError, WorkerHungError, KernelError: Name the GMI.
        """
        if not self._are_ready:
            self._collect(Ready, START_S, on_report, on_saved)
            self._are_ready = True
        for worker in self._workers:
            with contextlib.suppress(ControlClosedError):
                worker.control.send(Run(num_episodes, num_steps))
        answers = self._collect(Finished, None, on_report, on_saved)
        return tuple(answers[spec.gmi_id] for spec in self._gmis)

    def end(self) -> None:
        """Ends all processes; nothing is left behind."""
        for worker in self._workers:
            worker.kill()
            worker.close()
        self._workers.clear()
        if hasattr(self, "_board"):
            self._board.close()
            self._memory.close()
            del self._board
        self._seating.release()

    def _collect(
        self,
        answer: type[Answer],
        limit_s: float | None,
        on_report: Report | None,
        on_saved: Keep | None,
    ) -> dict[int, Answer]:
        """Waits for one answer of every GMI; `limit_s` None: only silence has a limit."""
        answers: dict[int, Answer] = {}
        accused: dict[int, Failed] = {}
        accused_at = 0.0
        seen = {spec.gmi_id: self._see(spec.gmi_id) for spec in self._gmis}
        until = None if limit_s is None else time.monotonic() + limit_s

        def is_answer(gmi_id: int, message: object) -> bool:
            nonlocal accused_at
            if isinstance(message, answer):
                answers[gmi_id] = message
                return True
            if isinstance(message, Reported) and on_report is not None:
                on_report(gmi_id, message.values)
            elif isinstance(message, Saved):
                if on_saved is not None:
                    on_saved(gmi_id, message)
            elif isinstance(message, Failed) and message.blames_other:
                accused_at = accused_at or time.monotonic()
                accused[gmi_id] = message
            elif isinstance(message, Failed):
                self._raise_failed(gmi_id, message)
            return False

        def look(missing: set[int]) -> None:
            if accused and time.monotonic() > accused_at + BLAME_S:
                self._raise_hung(accused, answers)
            if until is None:
                self._look(seen, sorted(missing - accused.keys()))
            elif time.monotonic() > until:
                self._raise_missing(sorted(missing), limit_s or 0.0)

        asked = range(len(self._workers))
        wait_for_answers(self._workers, asked, is_answer, self._raise_gone, look)
        return answers

    def _look(self, seen: dict[int, _Seen], missing: list[int]) -> None:
        """Finds who has been silent for too long.

        Who waits for others is not to blame, unless it does not say in time that it was in vain.
        """
        silent: list[int] = []
        for gmi_id in missing:
            last, now = seen[gmi_id], self._see(gmi_id)
            limit_s = self._deadline_s + (WAIT_SLACK_S if now.status.waits else 0.0)
            if (now.status, now.num_received) != (last.status, last.num_received):
                seen[gmi_id] = now
            elif now.since - last.since > limit_s:
                silent.append(gmi_id)
        if silent:
            self._raise_silent(silent)

    def _see(self, gmi_id: int) -> _Seen:
        received = self._workers[gmi_id].control.num_received
        return _Seen(self._board.read(gmi_id), received, time.monotonic())

    def _raise_gone(self, gmi_id: int) -> NoReturn:
        self.failed.add(gmi_id)
        raise WorkerDiedError(f"{self._describe(gmi_id)} {self._end_text(self._workers[gmi_id])}")

    def _describe(self, gmi_id: int) -> str:
        pid = self._workers[gmi_id].process.pid
        doing = self._board.describe(gmi_id, self._communication)
        return f"{self._gmis[gmi_id].title} (process {pid}), {doing},"

    def _end_text(self, worker: WorkerProcess) -> str:
        stderr = worker.stderr_text()
        return worker.exit_text() + (f"; the last it printed:\n{stderr}" if stderr else "")

    def _raise_failed(self, gmi_id: int, failed: Failed) -> NoReturn:
        self.failed.add(gmi_id)
        raise KernelError(
            f"{self._describe(gmi_id)} raised {failed.summary}\n{failed.text.strip()}"
        )

    def _raise_hung(self, accused: Mapping[int, Failed], answers: Mapping[int, object]) -> NoReturn:
        """Somebody's wait has ended in its deadline, and nobody has died."""
        first = min(accused)
        link = self._communication.links[self._board.read(first).link]
        quiet = [s.gmi_id for s in self._gmis if s.gmi_id not in {*accused, *answers}]
        guilty = [gmi_id for gmi_id in quiet if not self._board.read(gmi_id).waits]
        guilty = guilty or [gmi_id for gmi_id in quiet if gmi_id in link.participants]
        if guilty:
            self._raise_silent(guilty, accused[first].summary)
        raise ExecutionError(f"{self._describe(first)} raised {accused[first].summary}")

    def _raise_silent(self, silent: list[int], evidence: str = "") -> NoReturn:
        self.failed.update(silent)
        told = "; ".join(self._describe(gmi_id).rstrip(",") for gmi_id in silent)
        more = f" ({evidence})" if evidence else ""
        raise WorkerHungError(
            f"a GMI communicates or reports within {self._deadline_s:g} s, and none came from "
            f"{told}{more}"
        )

    def _raise_missing(self, missing: list[int], limit_s: float) -> NoReturn:
        self.failed.update(missing)
        titles = ", ".join(self._gmis[gmi_id].title for gmi_id in missing)
        raise WorkerHungError(f"GMIs are ready within {limit_s:g} s, and {titles} did not come")
