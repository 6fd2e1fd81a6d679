"""All-reduce between the processes of one host: ours in shared memory against gloo, in one run.

Per size and number of processes, gloo and every composition take turns, call by call in rounds of
random order; a call starts when all members have met at a barrier and ends when the last one has
the sum in its own array (so copies in and out of shared memory count). `in place` is the same with
gradients that are written in shared memory in the first place. `worst_over_gloo`: the largest, over
sizes and processes, of (median latency of the chosen composition) / (that of gloo), plain arrays.

What chooses is the library (`doppler.gmi_choice`), as for `add_collective(schedule="auto")`: it
simulates the compositions, measures the best of them in processes of its own, and takes the
fastest; `chosen_over_best` is the largest ratio of the chosen one to the best of all in the final
measurement. No process is bound to a core: gloo has a thread of its own, which then has to share.
`foreign_cores` says how many cores other programs kept busy meanwhile.

Usage: python benchmarks/collectives.py [--rounds N] [--processes 2,4] [--mib 0.2,0.6,3]
"""

import argparse
import json
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from support.common import finish

from doppler.core.cluster import Device
from doppler.core.collective import AllReduceSchedule
from doppler.gmi_choice import choose_composition, compositions
from executor.collectives.shared import AllReduceLayout, SharedAllReduce
from executor.host import cpu_times, foreign_cpu
from executor.shared_memory import allocate, map_all
from executor.workers.polling import shorten_naps

TARGETS = {"worst_over_gloo": "<= 0.5", "chosen_over_best": "<= 1.05"}
SEED = 0
GLOO = "gloo"
MIB = 1 << 20
TOLERANCE = 1e-5


def unbound(count: int) -> tuple[Device, ...]:
    """Returns a device per process, none of them bound to cores."""
    return tuple(Device(name=f"member{i}", kind="cpu", parent="cpu") for i in range(count))


def schedules_for(count: int) -> tuple[AllReduceSchedule, ...]:
    """Returns every composition, each once."""
    return compositions([device.parent or "" for device in unbound(count)])


def label(schedule: AllReduceSchedule) -> str:
    """Returns a name that tells compositions of one name apart."""
    return f"{schedule.name}:{len(schedule.steps)}"


class Barrier:
    """A meeting of all processes, by one word per process in shared memory."""

    def __init__(self, words: memoryview, member: int, count: int) -> None:
        self._words = words
        self._member = member
        self._count = count
        self._meetings = 0

    def meet(self) -> None:
        """Returns when all are there."""
        self._meetings += 1
        self._words[8 * self._member] = self._meetings
        for other in range(self._count):
            while self._words[8 * other] < self._meetings:
                os.sched_yield()


def serve(
    member: int, count: int, elements: int, fds: dict[str, int], store: str, pipe: Connection
) -> None:
    """Is one member: joins every group, then runs the calls that it is told to."""
    import torch
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    shorten_naps()
    dist.init_process_group(GLOO, init_method=f"file://{store}", rank=member, world_size=count)
    barrier = Barrier(memoryview(map_all(fds["barrier"])).cast("q"), member, count)
    names = [f"member{m}" for m in range(count)]
    ends = {
        index: SharedAllReduce(
            AllReduceLayout(schedule=schedule, num_elements=elements),
            map_all(fds[str(index)]),
            0,
            member,
            names,
        )
        for index, schedule in enumerate(schedules_for(count))
    }
    for end in ends.values():
        end.join()
    rng = np.random.default_rng([SEED, member])
    source = rng.normal(size=elements).astype(np.float32)
    expected = sum(
        np.random.default_rng([SEED, m]).normal(size=elements).astype(np.float32).astype(float)
        for m in range(count)
    )
    values = source.copy()
    tensor = torch.from_numpy(values)
    worst = 0.0
    while True:
        calls = pipe.recv()
        if calls is None:
            break
        spans = []
        for call in calls:
            kind, _, index = call.partition(":")
            target = ends[int(index)].part if kind == "part" else values
            np.copyto(target, source)
            barrier.meet()
            start = time.monotonic_ns()
            if kind == GLOO:
                dist.all_reduce(tensor)
            else:
                ends[int(index)].all_reduce(target)
            spans.append((start, time.monotonic_ns()))
            worst = max(worst, float(np.abs(target - expected).max()))
        pipe.send((spans, worst))
    dist.destroy_process_group()


class Team:
    """The members of one measurement."""

    def __init__(self, count: int, elements: int) -> None:
        schedules = schedules_for(count)
        sizes = {"barrier": 64 * count} | {
            str(i): AllReduceLayout(schedule=s, num_elements=elements).size_bytes
            for i, s in enumerate(schedules)
        }
        fds = {name: allocate("/dev/shm", size, "a benchmark") for name, size in sizes.items()}
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._processes = []
        for member in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve, args=(member, count, elements, fds, store, theirs), daemon=True
            )
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        for fd in fds.values():
            os.close(fd)
        self.worst_error = 0.0

    def latencies_ns(self, calls: list[str]) -> list[int]:
        """Returns per call the time from the last start to the last end."""
        for pipe in self._pipes:
            pipe.send(calls)
        rows = []
        for pipe in self._pipes:
            if not pipe.poll(120):
                raise SystemExit("a member of the benchmark does not answer")
            spans, worst = pipe.recv()
            rows.append(spans)
            self.worst_error = max(self.worst_error, worst)
        return [
            max(end for _, end in spans) - max(start for start, _ in spans)
            for spans in zip(*rows, strict=True)
        ]

    def medians_us(self, kinds: list[str], rounds: int, rng: random.Random) -> dict[str, float]:
        """Returns the median latency per kind of call, all kinds interleaved in random order."""
        found: dict[str, list[int]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            order = [kind for kind in kinds for _ in range(3)]
            rng.shuffle(order)
            for kind, value in zip(order, self.latencies_ns(order), strict=True):
                found[kind].append(value)
        return {kind: statistics.median(values) / 1000 for kind, values in found.items()}

    def close(self) -> None:
        """Ends the members."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(20)
            process.kill()
        self._folder.cleanup()


def main() -> None:
    """Measures all sizes and numbers of processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--processes", default="2,4")
    parser.add_argument("--mib", default="0.2,0.6,3")
    arguments = parser.parse_args()
    rng = random.Random(SEED)
    before = cpu_times()
    figures: dict[str, float] = {}
    over_gloo, over_best, errors, part_over_gloo = [], [], [], []
    for count in map(int, arguments.processes.split(",")):
        for mib in map(float, arguments.mib.split(",")):
            elements = round(mib * MIB) // 4
            schedules = schedules_for(count)
            choice = choose_composition(unbound(count), elements, "float32")
            chosen = schedules.index(choice.schedule)
            team = Team(count, elements)
            kinds = [GLOO] + [f"plain:{i}" for i in range(len(schedules))]
            team.medians_us(kinds, 3, rng)  # warms up
            medians = team.medians_us([*kinds, f"part:{chosen}"], arguments.rounds, rng)
            team.close()
            ours = {label(s): medians[f"plain:{i}"] for i, s in enumerate(schedules)}
            mine = medians[f"plain:{chosen}"]
            over_gloo.append(mine / medians[GLOO])
            part_over_gloo.append(medians[f"part:{chosen}"] / medians[GLOO])
            over_best.append(mine / min(ours.values()))
            errors.append(team.worst_error)
            where = f"{count} processes, {mib:g} MiB"
            row = ", ".join(f"{name} {value:.0f}" for name, value in ours.items())
            print(choice.describe())
            print(
                f"{where}: gloo {medians[GLOO]:.0f} us; chosen {schedules[chosen].name} "
                f"{mine:.0f} us (in place {medians[f'part:{chosen}']:.0f}); {row}"
            )
            key = f"us_{count}p_{mib:g}mib"
            figures[key] = mine
            figures[f"{key}_gloo"] = medians[GLOO]
    figures["worst_over_gloo"] = max(over_gloo)
    figures["worst_part_over_gloo"] = max(part_over_gloo)
    figures["chosen_over_best"] = max(over_best)
    figures["largest_error"] = max(errors)
    figures["foreign_cores"] = foreign_cpu(before, cpu_times())
    if max(errors) > TOLERANCE:
        raise SystemExit(f"sums differ by {max(errors)} from the exact ones: {json.dumps(errors)}")
    finish("collectives", figures, TARGETS, seed=SEED)


if __name__ == "__main__":
    main()
