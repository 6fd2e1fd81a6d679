"""Trainers that do not wait for each other: each applies its gradients to the shared weights.

Every trainer has environment shards of its own (shard k belongs to trainer k mod M), statistics and
minibatches of their rows, and a gradient of its own per step. The optimizer of a segment is one
colocation group that the ops of all trainers update: no edge orders updates of different trainers,
they are taken as they come. What an update returns is the shared segment as it is then, with the
number of updates behind it, so a trainer's own last update already holds what others did before;
along `latest` edges it also gets the last update of every other trainer, reads the newest, and
waits only for versions that are 1 + staleness iterations old. So no trainer is more than
1 + staleness iterations ahead of another, and weights are never older than that.

Source: Mnih et al., "Asynchronous methods for deep reinforcement learning", ICML 2016 (A3C; shared
statistics of the optimizer, section 4); GMI-DRL, section 2 (asynchronous mode).
"""

from dataclasses import dataclass

from doppler.core.graph import EdgeMode
from doppler.graphs.job_rows import Input, JobRows, text_of, token


@dataclass(frozen=True, slots=True, kw_only=True)
class IndependentTraining:
    """What the training of such a job is cut into.

    Attributes:
        num_shards: Environment shards K, a multiple of M.
        num_trainers: Trainers M.
        num_segments: Segments S of the weights.
        epochs, minibatches: Gradient steps per iteration and trainer.
        staleness: Versions that what others did may be behind those of the iteration before.
    """

    num_shards: int
    num_trainers: int
    num_segments: int
    epochs: int
    minibatches: int
    staleness: int

    @property
    def updates(self) -> list[tuple[int, int]]:
        """(epoch, minibatch) of every gradient step."""
        return [(e, b) for e in range(self.epochs) for b in range(self.minibatches)]

    def others(self, trainer: int) -> list[int]:
        """All other trainers."""
        return [m for m in range(self.num_trainers) if m != trainer]

    def shards(self, trainer: int) -> range:
        """The environment shards of a trainer."""
        return range(trainer, self.num_shards, self.num_trainers)


def add_independent_training(rows: JobRows, cut: IndependentTraining) -> None:
    """Adds statistics, gradients, updates and the policies that environments act on."""
    for m in range(cut.num_trainers):
        stats = [token(f"advantage[{k}]", 1) for k in cut.shards(m)]
        rows.add("collect", (m,), "collect", [*stats, token(f"collect[{m}]", 1, 1)])
    for index, update in enumerate(cut.updates):
        before, distance = (cut.updates[index - 1], 0) if index else (cut.updates[-1], 1)
        for m in range(cut.num_trainers):
            _add_update(rows, cut, update, m, (before, distance))
    last = text_of(cut.updates[-1])
    for m in range(cut.num_trainers):
        own = [token(f"adam[{last},{m},{j}]", 0) for j in range(cut.num_segments)]
        seen = [_latest(cut, f"collect[{other}]", 1) for other in cut.others(m)]
        inputs = [*own, token(f"collect[{m}]", 1), *seen]
        rows.add("broadcast", (m,), "broadcast", inputs)


def _add_update(
    rows: JobRows,
    cut: IndependentTraining,
    update: tuple[int, int],
    m: int,
    previous: tuple[tuple[int, int], int],
) -> None:
    """Adds one gradient of trainer m and what it does to every segment.

    previous: The trainer's gradient step before, and how many iterations ago it was.
    """
    (before, distance), at = (text_of(previous[0]), previous[1]), text_of(update)
    last = text_of(cut.updates[-1])
    weights: list[Input] = []
    for j in range(cut.num_segments):
        weights.append(token(f"adam[{before},{m},{j}]", 0, distance))
        weights += [_latest(cut, f"adam[{last},{other},{j}]", 0) for other in cut.others(m)]
    data = [token(f"advantage[{k}]", 0) for k in cut.shards(m)]
    rows.add("grad", (*update, m), f"grad[{at}]", [*weights, *data, token(f"collect[{m}]", 0)])
    segments = range(cut.num_segments)
    for j in segments:
        rows.add("reduce", (*update, m, j), f"reduce[{at}]", [token(f"grad[{at},{m}]", j)])
    norms = [token(f"reduce[{at},{m},{j}]", 1) for j in segments]
    for j in segments:
        inputs = [token(f"reduce[{at},{m},{j}]", 0), *norms]
        rows.add("adam", (*update, m, j), f"adam[{at}]", inputs, f"optimizer[{j}]")


def _latest(cut: IndependentTraining, name: str, output: int) -> Input:
    return (name, output, 1 + cut.staleness, EdgeMode.latest)
