"""Producers that are killed and restarted at random while consumers check every record."""

import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import numpy as np

from executor.experience.flow import Batcher, Migrator, Packer
from executor.experience.packages import BatchLayout, Package, group_packages
from executor.experience.ring import BatchReader, BatchWriter, RingLayout
from executor.shared_memory import allocate, map_all

ANT = (
    Package("state", "float32", (60,)),
    Package("action", "float32", (8,)),
    Package("reward", "float32"),
    Package("log_prob", "float32"),
    Package("value", "float32"),
    Package("done", "uint8"),
)
STATE, ACTION, REWARD = 0, 1, 2
EXACT = 1 << 20  # float32 holds whole numbers below 2^24 exactly


@dataclass(frozen=True, kw_only=True)
class ChurnResult:
    """What the consumers saw.

    Attributes:
        records: Records that were consumed.
        restarts: Producers that were killed and replaced.
        torn: Records whose fields do not belong together.
        doubled, lost: Records consumed more than once, or never, of those committed.
    """

    records: int
    restarts: int
    torn: int
    doubled: int
    lost: int


def fields(producer: int, first: int, count: int, life: int) -> dict[str, np.ndarray]:
    """Returns records that tell their number, their producer and which life of it made them."""
    numbers = np.arange(first, first + count)
    key = (numbers % EXACT).astype(np.float32)
    return {
        "state": np.repeat(key[:, None], 60, axis=1),
        "action": np.full((count, 8), life, np.float32),
        "reward": key,
        "log_prob": np.full(count, life, np.float32),
        "value": np.full(count, producer, np.float32),
        "done": (numbers % 251).astype(np.uint8),
    }


def torn_records(batch_arrays: tuple[np.ndarray, ...], producer: int, first: int) -> int:
    """Returns how many records of a batch are not as one life of the producer made them."""
    state, action, reward, log_prob, value, done = batch_arrays
    numbers = np.arange(first, first + len(reward))
    key = (numbers % EXACT).astype(np.float32)
    good = (state == key[:, None]).all(axis=1) & (reward == key) & (value == producer)
    good &= (action == log_prob[0]).all(axis=1) & (log_prob == log_prob[0])
    good &= done == (numbers % 251).astype(np.uint8)
    return int((~good).sum())


@dataclass(frozen=True, kw_only=True)
class Churn:
    """The set-up of a run.

    Attributes:
        producers, consumers: Processes.
        records: Records that each producer commits in all its lives.
        batch, step: Records per batch and per call of `append`.
        kill_every_s: Mean time between kills.
    """

    producers: int = 2
    consumers: int = 2
    records: int = 20_000
    batch: int = 96
    step: int = 64
    kill_every_s: float = 0.02
    seed: int = 0

    @property
    def ring(self) -> RingLayout:
        """Layout of each ring."""
        return RingLayout(BatchLayout(group_packages(ANT), self.batch), num_slots=4)

    def base(self, producer: int, consumer: int) -> int:
        """First byte of a ring; the line at 0 says that all producers have ended."""
        return 64 + (producer * self.consumers + consumer) * self.ring.size_bytes

    def run(self) -> ChurnResult:
        """Runs until every producer has committed all its records."""
        fd = allocate("/dev/shm", self.base(self.producers, 0), "rings under churn")
        context = multiprocessing.get_context("fork")
        pipes, consumers = [], []
        for consumer in range(self.consumers):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=self._consume, args=(fd, consumer, theirs), daemon=True
            )
            process.start()
            pipes.append(ours)
            consumers.append(process)
        restarts = self._supervise(fd)
        map_all(fd)[0:1] = b"\1"
        seen = [pipe.recv() for pipe in pipes]
        for process in consumers:
            process.join()
        os.close(fd)
        return self._account(seen, restarts)

    def _supervise(self, fd: int) -> int:
        context = multiprocessing.get_context("fork")
        rng = random.Random(self.seed)
        lives = [0] * self.producers
        running: dict[int, BaseProcess] = {}

        def start(producer: int) -> None:
            lives[producer] += 1
            running[producer] = context.Process(
                target=self._produce, args=(fd, producer, lives[producer]), daemon=True
            )
            running[producer].start()

        for producer in range(self.producers):
            start(producer)
        while running:
            time.sleep(rng.expovariate(1 / self.kill_every_s))
            producer = rng.choice(list(running))
            pid = running[producer].pid
            if pid is not None and running[producer].is_alive():
                os.kill(pid, signal.SIGKILL)
            running[producer].join()
            if running[producer].exitcode == 0:
                del running[producer]
            else:
                start(producer)
        return sum(lives) - self.producers

    def _produce(self, fd: int, producer: int, life: int) -> None:
        memory = map_all(fd)
        ring = self.ring
        writers = [BatchWriter(ring, memory, self.base(producer, c)) for c in range(self.consumers)]
        packer = Packer(producer, Migrator(writers))
        while packer.next_record < self.records:
            count = min(self.step, self.records - packer.next_record)
            packer.append(fields(producer, packer.next_record, count, life), version=life)
        packer.flush()
        os._exit(0)

    def _consume(self, fd: int, consumer: int, pipe: Connection) -> None:
        memory = map_all(fd)
        readers = [
            BatchReader(self.ring, memory, self.base(p, consumer)) for p in range(self.producers)
        ]
        batcher = Batcher(readers)
        spans: list[tuple[int, int, int]] = []
        torn = 0
        while True:
            is_over = memory[0] == 1  # read before looking: what is there now is all
            found = batcher.next()
            if found is None:
                if is_over:
                    break
                os.sched_yield()
                continue
            reader, batch = found
            torn += torn_records(batch.arrays, batch.producer, batch.first)
            spans.append((batch.producer, batch.first, batch.count))
            reader.release()
        pipe.send((spans, torn))

    def _account(
        self, seen: list[tuple[list[tuple[int, int, int]], int]], restarts: int
    ) -> ChurnResult:
        times = np.zeros((self.producers, self.records), np.int64)
        for spans, _ in seen:
            for producer, first, count in spans:
                times[producer, first : first + count] += 1
        return ChurnResult(
            records=int(times.sum()),
            restarts=restarts,
            torn=sum(torn for _, torn in seen),
            doubled=int(np.maximum(times - 1, 0).sum()),
            lost=int((times == 0).sum()),
        )
