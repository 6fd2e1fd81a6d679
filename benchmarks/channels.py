"""Experience from an agent process to a trainer process: packed channels, messages, queues.

Bandwidth of Ant-sized records (60 + 8 numbers and four scalars), `--step` records per agent step.
All move the same records from arrays of the agent to training batches of the trainer:
- packed: our channels, batch chosen by the library (`doppler.gmi_batch`), as for
  `add_channel(batch="auto")`;
- per_field: the same rings, one message per field of a step;
- queue: torch.multiprocessing.Queue, one tuple of tensors per step; queue_joined: one tensor of all
  fields per step (as far as types allow). `packed_over_queue` is over the faster of the two;
- queue_batched: the queue with our batching in front of it, for what is left of the difference.

Then the churn: `--records` records in all through rings whose producers are killed and replaced at
random; the consumers check every record and account for each one (lost, doubled, torn).

Usage: python benchmarks/channels.py [--records N] [--step N] [--blocks N]
"""

import argparse
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from support.channel_churn import ANT, Churn, fields
from support.common import finish

from doppler.core.cluster import Device
from doppler.gmi_batch import measured_batch
from executor.experience.flow import Batcher, Migrator, Packer
from executor.experience.packages import (
    BatchLayout,
    Channel,
    Package,
    group_packages,
    top_mov,
)
from executor.experience.ring import BatchReader, BatchWriter, RingLayout
from executor.host import cpu_times, foreign_cpu
from executor.shared_memory import allocate, map_all

TARGETS = {
    "packed_over_queue": ">= 3",
    "packed_over_per_field": ">= 3",
    "lost": "== 0",
    "doubled": "== 0",
    "torn": "== 0",
}
SEED = 0
RECORD_BYTES = sum(package.num_bytes for package in ANT)
TRAINING_BATCH = 4096
NUM_SLOTS = 4
MIB = 1 << 20

Send = Callable[[dict[str, np.ndarray]], None]
Receive = Callable[[tuple[np.ndarray, ...]], None]


def cores() -> tuple[Device, Device]:
    """Returns the devices of agent and trainer: the first and the last usable core."""
    usable = sorted(os.sched_getaffinity(0))
    first, last = (
        Device(name=name, kind="cpu", parent="cpu", cores=(core,))
        for name, core in (("agent", usable[0]), ("trainer", usable[-1]))
    )
    return first, last


def training_arrays() -> tuple[np.ndarray, ...]:
    """Returns arrays of one training batch, a package each, in the order of the channels."""
    packages = BatchLayout(group_packages(ANT), 1).packages
    return tuple(np.zeros((TRAINING_BATCH, *p.shape), p.dtype) for p in packages)


def measure(
    steps: int, step: int, make_send: Callable[[], Send], make_receive: Callable[[], Receive]
) -> float:
    """Returns MiB/s from the first append in the agent to the last record in the trainer."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_agent, args=(steps, step, make_send, theirs), daemon=True)
    process.start()
    receive = make_receive()
    arrays = training_arrays()
    ours.recv()
    start = time.monotonic_ns()
    ours.send(None)
    for _ in range(steps * step // TRAINING_BATCH):
        receive(arrays)
    elapsed_ns = time.monotonic_ns() - start
    ours.send(None)
    process.join(20)
    return steps * step * RECORD_BYTES / MIB / (elapsed_ns / 1e9)


def _agent(steps: int, step: int, make_send: Callable[[], Send], pipe: Connection) -> None:
    send = make_send()
    experience = fields(0, 0, step, 0)
    pipe.send(None)
    pipe.recv()
    for _ in range(steps):
        send(experience)
    pipe.recv()  # a queue's tensors live as long as their maker
    os._exit(0)


def packed(batch: int) -> tuple[Callable[[], Send], Callable[[], Receive]]:
    """Returns both ends of our channels."""
    ring = RingLayout(BatchLayout(group_packages(ANT), batch), NUM_SLOTS)
    memory = map_all(allocate("/dev/shm", ring.size_bytes, "a benchmark"))

    def make_send() -> Send:
        packer = Packer(0, Migrator([BatchWriter(ring, memory, 0)]))
        return lambda experience: packer.append(experience, 0)

    def make_receive() -> Receive:
        batcher = Batcher([BatchReader(ring, memory, 0)])
        return lambda arrays: batcher.collect(arrays, 0)

    return make_send, make_receive


def per_field(step: int) -> tuple[Callable[[], Send], Callable[[], Receive]]:
    """Returns both ends of one ring per field, a message per field of a step."""
    packages: tuple[Package, ...] = BatchLayout(group_packages(ANT), 1).packages
    rings = [RingLayout(BatchLayout((Channel((p,)),), step), 4 * NUM_SLOTS) for p in packages]
    memories = [map_all(allocate("/dev/shm", r.size_bytes, "a benchmark")) for r in rings]
    pairs = list(zip(rings, memories, strict=True))

    def make_send() -> Send:
        packers = [
            (p.name, Packer(0, Migrator([BatchWriter(ring, memory, 0)])))
            for p, (ring, memory) in zip(packages, pairs, strict=True)
        ]

        def send(experience: dict[str, np.ndarray]) -> None:
            for name, packer in packers:
                packer.append({name: experience[name]}, 0)

        return send

    def make_receive() -> Receive:
        batchers = [Batcher([BatchReader(ring, memory, 0)]) for ring, memory in pairs]

        def receive(arrays: tuple[np.ndarray, ...]) -> None:
            for start in range(0, TRAINING_BATCH, step):
                for batcher, array in zip(batchers, arrays, strict=True):
                    batcher.collect([array[start : start + step]], 0)

        return receive

    return make_send, make_receive


def queued(
    step: int, joined: bool, message: int
) -> tuple[Callable[[], Send], Callable[[], Receive]]:
    """Returns both ends of a torch queue with `message` records per message."""
    import torch
    import torch.multiprocessing

    torch.set_num_threads(1)
    queue: Any = torch.multiprocessing.get_context("fork").Queue(maxsize=64)
    names = [p.name for p in BatchLayout(group_packages(ANT), 1).packages]
    is_float = [p.dtype == "float32" for p in BatchLayout(group_packages(ANT), 1).packages]

    def make_send() -> Send:
        held: list[list[np.ndarray]] = []

        def send(experience: dict[str, np.ndarray]) -> None:
            arrays = [experience[name] for name in names]
            if message > step:
                held.append(arrays)
                if len(held) * step < message:
                    return
                arrays = [np.concatenate(parts) for parts in zip(*held, strict=True)]
                held.clear()
            if joined:
                rows = [a.reshape(message, -1) for a, f in zip(arrays, is_float, strict=True) if f]
                others = [a for a, f in zip(arrays, is_float, strict=True) if not f]
                arrays = [np.concatenate(rows, axis=1), *others]
            # A queue shares memory instead of copying: every message needs tensors of its own.
            queue.put(tuple(torch.from_numpy(a).clone() for a in arrays))

        return send

    def make_receive() -> Receive:
        def receive(arrays: tuple[np.ndarray, ...]) -> None:
            for start in range(0, TRAINING_BATCH, message):
                got = [tensor.numpy() for tensor in queue.get()]
                if joined:
                    floats, *others = got
                    ends = np.cumsum(
                        [a[0].size for a, f in zip(arrays, is_float, strict=True) if f]
                    )
                    parts = iter(np.split(floats, ends[:-1], axis=1))
                    rest = iter(others)
                    got = [next(parts) if f else next(rest) for f in is_float]
                for array, values in zip(arrays, got, strict=True):
                    array[start : start + message] = values.reshape(message, *array.shape[1:])

        return receive

    return make_send, make_receive


def main() -> None:
    """Measures bandwidth in interleaved blocks, then runs the churn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--step", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=5)
    arguments = parser.parse_args()
    step, rng = arguments.step, random.Random(SEED)
    before = cpu_times()
    # The churn comes first: its processes are forked before torch is loaded.
    producers = 2
    churn = Churn(
        producers=producers,
        consumers=2,
        records=arguments.records // producers,
        batch=512,
        step=512,
        kill_every_s=0.03,
        seed=SEED,
    ).run()
    few = 20 * TRAINING_BATCH // step
    choice = measured_batch(*cores(), ANT, NUM_SLOTS, step)
    batch = choice.batch
    print(choice.describe(), flush=True)
    kinds: dict[str, Callable[[], float]] = {
        "packed": lambda: measure(8 * few, step, *packed(batch)),
        "per_field": lambda: measure(2 * few, step, *per_field(step)),
        "queue": lambda: measure(few, step, *queued(step, False, step)),
        "queue_joined": lambda: measure(few, step, *queued(step, True, step)),
        "queue_batched": lambda: measure(4 * few, step, *queued(step, False, batch)),
    }
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(arguments.blocks):
        for kind in rng.sample(list(kinds), len(kinds)):
            found[kind].append(kinds[kind]())
    medians = {kind: statistics.median(values) for kind, values in found.items()}
    channels = group_packages(ANT)
    figures = {f"{kind}_mib_per_s": value for kind, value in medians.items()}
    figures |= {
        "batch": batch,
        "analytic_batch": choice.analytic,
        "channels": len(channels),
        "top_mov": float(top_mov(channels)),
        "packed_over_queue": medians["packed"] / max(medians["queue"], medians["queue_joined"]),
        "packed_over_per_field": medians["packed"] / medians["per_field"],
        "packed_over_queue_batched": medians["packed"] / medians["queue_batched"],
        "churn_records": churn.records,
        "churn_restarts": churn.restarts,
        "lost": churn.lost,
        "doubled": churn.doubled,
        "torn": churn.torn,
        "foreign_cores": foreign_cpu(before, cpu_times()),
    }
    finish("channels", figures, TARGETS, seed=SEED)


if __name__ == "__main__":
    main()
