"""MPS clients: environment, control commands, static partitions, and the check from inside.

A client that silently runs without MPS sees the whole GPU and no error, so every worker compares
the multiprocessors that it sees with what it was given (`check_seen_sms`). Not yet run on hardware.

Source: NVIDIA MPS documentation (environment variables; control commands; static SM partitions).
"""

import math
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from doppler.core.errors import ClusterError, ExecutionError

CONTROL = "nvidia-cuda-mps-control"
CONTROL_TIMEOUT_S = 20.0
MIB = 1 << 20
PERCENTAGE_ROUNDING_SMS = 2  # a count is rounded down to whole pairs: 25 % of 188 is 46
PARTITIONS_SINCE = 13010
"""Least version of the control program that has static partitions (CUDA 13.1).

Source: Isaac ROS documentation, "MPS GPU Partitioning", prerequisites.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsShare:
    """What one client owns of a GPU.

    Attributes:
        gpu_uuid: The GPU ("GPU-..."); numbers would depend on what the daemon sees.
        pipe_directory: Where the daemon listens, on a local file system.
        percentage: Ceiling on multiprocessors in percent, or None.
        partition: Static partition (its id, "GPU-.../id"), or None; excludes a percentage.
        memory_bytes: Limit on device memory, or None.
    """

    gpu_uuid: str
    pipe_directory: str
    percentage: float | None = None
    partition: str | None = None
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if not self.gpu_uuid.startswith("GPU-"):
            raise ClusterError(f"an MPS client names its GPU by UUID, and got {self.gpu_uuid!r}")
        if self.percentage is not None and not 0.0 < self.percentage <= 100.0:
            raise ClusterError(
                f"a share of {self.gpu_uuid} is above 0 and at most 100 percent, and it is "
                f"{self.percentage:g}"
            )
        if self.percentage is not None and self.partition is not None:
            raise ClusterError(
                f"a client of {self.gpu_uuid} has a percentage or a partition, and it got both "
                f"({self.percentage:g} and {self.partition!r})"
            )
        if self.memory_bytes is not None and self.memory_bytes < MIB:
            raise ClusterError(
                f"a memory limit is at least 1 MiB, and {self.gpu_uuid} has {self.memory_bytes}"
            )


def client_environment(environment: Mapping[str, str], share: MpsShare) -> dict[str, str]:
    """Returns the environment of a client; it must stand before CUDA is initialised.

    The memory limit names this one GPU only: a single entry for a GPU that the process cannot see
    drops all limits.
    """
    kept = {k: v for k, v in environment.items() if not k.startswith("CUDA_MPS_")}
    kept["CUDA_VISIBLE_DEVICES"] = share.gpu_uuid
    kept["CUDA_MPS_PIPE_DIRECTORY"] = share.pipe_directory
    if share.percentage is not None:
        # Rounded up in the fourth place: a count that falls just short loses a whole pair.
        rounded = min(100.0, math.ceil(share.percentage * 1e4) / 1e4)
        kept["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{rounded:.8g}"
    if share.partition is not None:
        kept["CUDA_MPS_SM_PARTITION"] = share.partition
    if share.memory_bytes is not None:
        kept["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"{share.gpu_uuid}={share.memory_bytes // MIB}M"
    return kept


def check_seen_sms(
    device: str, seen: int, asked: int, total: int, rounding: int = PERCENTAGE_ROUNDING_SMS
) -> None:
    """Checks, in a client, the multiprocessors that CUDA shows it.

    Args:
        device: Name of the device, for the message.
        seen: What CUDA shows.
        asked: What the layout gives it.
        total: Multiprocessors of the GPU.
        rounding: The count may be lower by less than this.

    Raises:
        ClusterError: If the client runs without MPS, or with another share.
    """
    if seen == total and asked < total:
        raise ClusterError(
            f"device {device!r} owns {asked} of {total} SMs, and its worker sees all of them: it "
            f"runs without MPS (is CUDA_MPS_PIPE_DIRECTORY that of the daemon?)"
        )
    if not asked - rounding < seen <= asked:
        raise ClusterError(
            f"device {device!r} owns {asked} of {total} SMs (rounded down by less than "
            f"{rounding}), and its worker sees {seen}"
        )


def chunk_sms(capability: tuple[int, int]) -> int:
    """Returns the multiprocessors of one chunk of a static partition on a discrete GPU.

    Raises:
        ClusterError: If the GPU is older than Ampere.
    """
    if capability < (8, 0):
        raise ClusterError(
            f"static partitions need compute capability 8.0, and the GPU has "
            f"{capability[0]}.{capability[1]}"
        )
    return 8 if capability >= (9, 0) else 4


def chunks_for(sms: int, capability: tuple[int, int]) -> int:
    """Returns the chunks of a partition with at most `sms` multiprocessors.

    Raises:
        ClusterError: If not even one chunk fits.
    """
    size = chunk_sms(capability)
    if sms < size:
        raise ClusterError(f"a partition has at least {size} SMs, and {sms} are asked")
    return sms // size


class MpsControl:
    """Speaks with the daemon that listens in a pipe directory.

    Raises (from every method):
        ExecutionError: If the control program is missing, fails or does not answer.
    """

    def __init__(self, pipe_directory: str, program: str = CONTROL) -> None:
        self._program = program
        self._environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": pipe_directory}

    def send(self, command: str) -> str:
        """Returns the daemon's answer to one command."""
        return self._run([self._program], command)

    def version(self) -> int | None:
        """Returns the version of the control program (13010 = CUDA 13.1), None if it tells none.

        It needs no daemon.
        """
        found = re.search(r"version:?\s*(\d+)", self._run([self._program, "-v"]), re.IGNORECASE)
        return None if found is None else int(found[1])

    def servers(self) -> tuple[int, ...]:
        """Returns the process ids of the servers."""
        answer = self.send("get_server_list")
        lines = answer.split()
        if not all(line.isdigit() for line in lines):
            raise ExecutionError(f"get_server_list prints process ids, and it printed {answer!r}")
        return tuple(map(int, lines))

    def clients(self, server: int) -> tuple[int, ...]:
        """Returns the process ids of a server's clients."""
        answer = self.send(f"get_client_list {server}")
        lines = answer.split()
        if not all(line.isdigit() for line in lines):
            raise ExecutionError(f"get_client_list prints process ids, and it printed {answer!r}")
        return tuple(map(int, lines))

    def add_partition(self, gpu_uuid: str, chunks: int) -> str:
        """Makes a static partition and returns its id, "GPU-.../id".

        The answer is the id alone, or stands in a sentence ("Partition GPU-.../id created").
        """
        answer = self.send(f"sm_partition add {gpu_uuid} {chunks}")
        found = re.search(rf"{re.escape(gpu_uuid)}/\S+", answer)
        if found is None:
            raise ExecutionError(
                f"sm_partition add prints UUID/id, and for {chunks} chunks of {gpu_uuid} it "
                f"printed {answer!r}"
            )
        return found[0]

    def remove_partition(self, partition: str) -> None:
        """Removes a static partition, "GPU-.../id"."""
        gpu_uuid, _, name = partition.partition("/")
        self.send(f"sm_partition rm {gpu_uuid} {name}")

    def quit(self) -> None:
        """Ends the daemon."""
        self.send("quit")

    def _run(self, command: list[str], line: str = "") -> str:
        """Returns what the control program prints, given a line to read."""
        asked = line or " ".join(command[1:])
        try:
            done = subprocess.run(
                command,
                input=f"{line}\n",
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=CONTROL_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ExecutionError(f"{self._program} did not take {asked!r}: {error}") from error
        if done.returncode != 0:
            text = (done.stderr or done.stdout).strip()
            raise ExecutionError(f"{self._program} refused {asked!r}: {text}")
        return done.stdout.strip()
