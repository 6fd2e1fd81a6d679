"""A job that can be placed and run: what placing, calibrating and reporting need to know of it."""

from dataclasses import dataclass

from doppler.core.graph import DataflowGraph
from doppler.core.problem import Objective
from doppler.measure import NO_MARGINS, Margins
from executor.job_spec import JobSpec


@dataclass(frozen=True, kw_only=True)
class RealJob:
    """A job that can be placed and run.

    Attributes:
        name: Name of the job.
        graph: Its dataflow graph.
        spec: The recipe that every worker builds its kernels from.
        objective: What its plans make small: `period` where iterations overlap, `makespan` where
            each is a pass of its own and passes run one after the other.
        size: How large it is, in words.
        facts: What a report says of it: (name, value).
        margins: What windows leave out, because iterations overlap.
    """

    name: str
    graph: DataflowGraph
    spec: JobSpec
    objective: Objective
    size: str
    facts: tuple[tuple[str, str], ...]
    margins: Margins = NO_MARGINS

    @property
    def text(self) -> str:
        """Name and facts in one sentence: what runs."""
        return f"{self.name}: " + "; ".join(f"{name} {value}" for name, value in self.facts)
