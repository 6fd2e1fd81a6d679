"""Tries an all-reduce between real processes, each started as a worker of its device is.

A trial ends before a deadline, whatever its members do, and says who failed and why.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

from doppler.core.cluster import Cluster, Device
from executor.collectives.kernels import CollectiveKernel
from executor.collectives.trial import MemberSpec, trial_bytes
from executor.launch.gpus import Gpu, GpuInventory
from executor.launch.local import bound_command, worker_environment
from executor.launch.seats import Seat, plan_seats
from executor.shared_memory import allocate
from executor.workers.share import MPS, WHOLE

TRIAL_S = 90.0
"""The whole trial: processes start, load torch and open their device."""
MEMBER_S = 30.0
"""How long a member waits for another."""
ENDED_S = 1.0
"""To read what a member that has ended has printed, when the time of the trial is over."""
NUM_ELEMENTS, NUM_CALLS = 50_000, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """An all-reduce to try.

    Attributes:
        kernel: What does it.
        place: Where its members are, in words.
        seats: Process of each member; one seat may be taken several times.
        parents: Processor that each member is cut from.
        cores: Cores of each member; none = all.
        num_elements: Length of every array.
        num_calls: All-reduces.
    """

    kernel: CollectiveKernel
    place: str
    seats: tuple[Seat, ...]
    parents: tuple[str, ...]
    cores: tuple[int, ...] = ()
    num_elements: int = NUM_ELEMENTS
    num_calls: int = NUM_CALLS


class RunningTrial:
    """The processes of a trial; leaving the context ends them.

    Args:
        trial: What they do.
        shm_dir: Mount for the shared memory.

    Attributes:
        processes: One per member.

    Raises:
        CapacityError: If the shared memory does not suffice.
    """

    def __init__(self, trial: Trial, shm_dir: str = "/dev/shm") -> None:
        self._trial = trial
        self.processes: list[subprocess.Popen[str]] = []
        self._stderr: list[IO[bytes]] = []
        size = trial_bytes(len(trial.seats), trial.num_elements)
        self._until = time.monotonic() + TRIAL_S
        shared_fd = allocate(shm_dir, size, "a trial of an all-reduce")
        store_fd = os.memfd_create("store")
        try:
            for member, seat in enumerate(trial.seats):
                self._start(member, seat, shared_fd, store_fd)
        except BaseException:
            self.end()
            raise
        finally:
            os.close(shared_fd)
            os.close(store_fd)

    def __enter__(self) -> "RunningTrial":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def result(self) -> dict[str, str]:
        """Waits for all members: {"text": what came out}, or {"error": who failed, and why}."""
        answers = [self._answer(member) for member in range(len(self.processes))]
        errors = [answer for answer in answers if "error" in answer]
        if not errors:
            return {"text": answers[0]["text"]}
        first = next((answer for answer in errors if not answer.get("blames")), errors[0])
        return {"error": first["error"]}

    def end(self) -> None:
        """Ends all processes; nothing is left behind."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for file in self._stderr:
            file.close()

    def _start(self, member: int, seat: Seat, shared_fd: int, store_fd: int) -> None:
        trial = self._trial
        spec = MemberSpec(
            kernel=trial.kernel.value,
            member=member,
            parents=trial.parents,
            num_elements=trial.num_elements,
            num_calls=trial.num_calls,
            deadline_s=MEMBER_S,
            share=seat.shares[0] if seat.shares else None,
        )
        module = "executor.collectives.trial"
        command = [sys.executable, "-P", "-m", module, spec.to_json()]
        cores = trial.cores[member : member + 1]
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the trial
        self._stderr.append(stderr)
        self.processes.append(
            subprocess.Popen(
                bound_command(cores, [*command, str(shared_fd), str(store_fd)]),
                env=seat.environment(worker_environment(os.environ, 1, sys.path)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                pass_fds=(shared_fd, store_fd),
            )
        )

    def _answer(self, member: int) -> dict[str, Any]:
        process, who = self.processes[member], f"member {member} on {self._trial.parents[member]}"
        try:
            left_s = max(ENDED_S, self._until - time.monotonic())
            printed, _ = process.communicate(timeout=left_s)
        except subprocess.TimeoutExpired:
            return {"error": f"{who} has not ended within {TRIAL_S:g} s{self._last_words(member)}"}
        lines = printed.strip().splitlines()
        if process.returncode != 0 or not lines:
            code = process.returncode
            return {"error": f"{who} ended with exit code {code}{self._last_words(member)}"}
        answer: dict[str, Any] = json.loads(lines[-1])
        if "error" in answer and not answer["blames"]:
            answer["error"] = f"{who}: {answer['error']}"
        return answer

    def _last_words(self, member: int) -> str:
        file = self._stderr[member]
        file.seek(0)
        lines = file.read().decode(errors="replace").strip().splitlines()
        return f", and the last it printed is: {lines[-1]}" if lines else ""


def run_trial(trial: Trial) -> dict[str, str]:
    """Tries it; returns {"text": what came out}, or {"error": who failed, and why}."""
    with RunningTrial(trial) as running:
        return running.result()


def core_trial(kernel: CollectiveKernel, core_ids: Sequence[int], num_members: int = 2) -> Trial:
    """Returns a trial between core groups of one core each; they share cores if there are few."""
    cores = tuple(core_ids[member % len(core_ids)] for member in range(num_members))
    return Trial(
        kernel=kernel,
        place=f"cores {', '.join(map(str, cores))}",
        seats=tuple(Seat(devices=(member,)) for member in range(num_members)),
        parents=("cpu",) * num_members,
        cores=cores,
    )


def gpu_trial(
    kernel: CollectiveKernel,
    inventory: GpuInventory,
    members: Mapping[str, int],
    has_mps: bool,
    num_elements: int = NUM_ELEMENTS,
) -> Trial:
    """Returns a trial between members on GPUs.

    Several members of one GPU are MPS clients with equal shares where there is a daemon, else
    processes that take turns on the whole GPU.

    Args:
        kernel: What does it.
        inventory: GPUs of this host.
        members: Name of a GPU without MIG -> its members.
        has_mps: True if the MPS daemon serves clients.
        num_elements: Length of every array.
    """
    seats: list[Seat] = []
    parents: list[str] = []
    places: list[str] = []
    for name, count in members.items():
        gpu = inventory.find(name, "a trial")
        shares = has_mps and count > 1
        devices = [_part_of(gpu, index, count) for index in range(count)] if shares else None
        cluster = Cluster(name="trial", devices=tuple(devices or [_part_of(gpu, 0, 1)]))
        found = plan_seats(cluster, inventory, os.environ)
        seats += found if shares else found * count
        parents += [name] * count
        what = "MPS clients" if shares else "processes"
        places.append(name if count == 1 else f"{count} {what} on {name}")
    return Trial(
        kernel=kernel,
        place=" and ".join(places),
        seats=tuple(seats),
        parents=tuple(parents),
        num_elements=num_elements,
    )


def _part_of(gpu: Gpu, index: int, count: int) -> Device:
    units = gpu.num_units if count == 1 else gpu.num_units // count // 2 * 2
    return Device(
        name=f"part {index} of {gpu.name}",
        kind=WHOLE if count == 1 else MPS,
        parent=gpu.name,
        share=units / gpu.num_units,
        memory_bytes=gpu.memory_bytes // count,
    )
