"""What user-written GMIs did when: a timeline, and a division of their time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from doppler.core.cluster import Cluster
from doppler.core.errors import DopplerError
from doppler.report.attribution import Category, DeviceAttribution, Share
from doppler.report.intervals import Interval, intersect, length, subtract, union
from doppler.report.model import TimeTable
from doppler.report.timeline import Bar, IterationEnd, Timeline
from executor.gmi.communication import Communication, GMISpec
from executor.gmi.spans import FIRST_LINK, METHODS, RUN, TRAIN

MAX_BARS = 3000
"""Bars of a timeline; of longer runs the end is shown."""
KIND, CALL, START, END = range(4)


@dataclass(frozen=True, kw_only=True)
class GMITrace:
    """All that the GMIs of one run have written down.

    Attributes:
        cluster: Where they ran.
        gmis: Who they are.
        communication: Their links.
        spans: Per GMI int64[spans, 4]: kind, call, start_ns, end_ns on one clock
            (`executor.gmi.spans`).
        num_dropped: Per GMI, spans that were too many to keep, the oldest.

    Raises:
        DopplerError: If a GMI has no span: a finished run has at least that of `run`.
    """

    cluster: Cluster
    gmis: tuple[GMISpec, ...]
    communication: Communication
    spans: tuple[npt.NDArray[np.int64], ...]
    num_dropped: tuple[int, ...]

    def __post_init__(self) -> None:
        for spec, rows in zip(self.gmis, self.spans, strict=True):
            if not len(rows):
                raise DopplerError(f"a GMI that has run has spans, and {spec.title} has none")

    @property
    def begin_ns(self) -> int:
        """When the first GMI began."""
        return min(int(rows[:, START].min()) for rows in self.spans)

    @property
    def end_ns(self) -> int:
        """When the last GMI ended."""
        return max(int(rows[:, END].max()) for rows in self.spans)

    @property
    def num_iterations(self) -> int:
        """Training steps, of the GMI that took the most; 0 if none overrides `train`."""
        calls = [rows[rows[:, KIND] == TRAIN, CALL] for rows in self.spans]
        return max((int(call.max()) + 1 for call in calls if len(call)), default=0)

    def name_of(self, kind: int) -> str:
        """Returns a method's or a link's name."""
        if kind < FIRST_LINK:
            return METHODS[kind]
        return self.communication.links[kind - FIRST_LINK].name

    def timeline(self) -> Timeline:
        """Returns the last `MAX_BARS` spans as a chart: a row per GMI, what is nested below.

        A method or link is as wide as its call; an iteration ends when the last GMI has ended that
        call of `train`.
        """
        order = sorted(
            (int(row[END]), gmi, tuple(int(value) for value in row))
            for gmi, rows in enumerate(self.spans)
            for row in rows
        )[-MAX_BARS:]
        begin = self.begin_ns
        if len(order) == MAX_BARS:  # `run` began with the job: the chart begins with what it calls
            begin = min((row[START] for _, _, row in order if row[KIND] != RUN), default=begin)
        shown: list[list[tuple[int, ...]]] = [[] for _ in self.gmis]
        for _, gmi, row in order:
            shown[gmi].append(row)
        bars: list[Bar] = []
        num_streams: list[int] = []
        for gmi, (spec, rows) in enumerate(zip(self.gmis, shown, strict=True)):
            placed = list(_in_rows(rows))
            num_streams.append(1 + max((stream for stream, _ in placed), default=0))
            for stream, row in placed:
                name = self.name_of(row[KIND])
                bars.append(
                    Bar(
                        name=f"{spec.role} {spec.gmi_id}: {name}",
                        kind=name,
                        iteration=row[CALL],
                        device=gmi,
                        stream=stream,
                        ready_ns=max(row[START], begin) - begin,
                        start_ns=max(row[START], begin) - begin,
                        end_ns=row[END] - begin,
                    )
                )
        return Timeline(
            title="Measured, GMIs as written",
            devices=self._titles(),
            num_streams=tuple(num_streams),
            length_ns=self.end_ns - begin,
            bars=tuple(bars),
            moves=(),
            iteration_ends=tuple(
                IterationEnd(call, end - begin)
                for call, end in self._iteration_ends()
                if end > begin
            ),
        )

    def time_table(self) -> TimeTable:
        """Returns what each GMI did with the time from the first begin to the last end.

        Time within a link, waiting included, is communication; the rest of a method is compute of
        the innermost method; the rest is no work.
        """
        whole = [(self.begin_ns, self.end_ns)]
        devices = tuple(
            self._divided(title, rows, whole)
            for title, rows in zip(self._titles(), self.spans, strict=True)
        )
        return TimeTable(
            title="Measured, GMIs as written",
            iterations=max(1, self.num_iterations),
            devices=devices,
        )

    def _titles(self) -> tuple[str, ...]:
        return tuple(f"{spec.device.name} ({spec.role} {spec.gmi_id})" for spec in self.gmis)

    def _iteration_ends(self) -> Iterator[tuple[int, int]]:
        ends: dict[int, int] = {}
        for rows in self.spans:
            for row in rows[rows[:, KIND] == TRAIN]:
                call = int(row[CALL])
                ends[call] = max(ends.get(call, 0), int(row[END]))
        yield from sorted(ends.items())

    def _divided(
        self, title: str, rows: npt.NDArray[np.int64], whole: list[Interval]
    ) -> DeviceAttribution:
        by_kind: dict[int, list[Interval]] = {}
        for kind in np.unique(rows[:, KIND]).tolist():
            own = rows[rows[:, KIND] == kind]
            by_kind[kind] = union((int(row[START]), int(row[END])) for row in own)
        shares: list[Share] = []
        taken: list[Interval] = []
        # Links lie in methods, `collective` in `train`, and `train` in `run`.
        links = [kind for kind in by_kind if kind >= FIRST_LINK]
        methods = sorted((kind for kind in by_kind if kind < FIRST_LINK), reverse=True)
        for kind in (*links, *methods):
            rest = subtract(intersect(by_kind[kind], whole), taken)
            taken = union([*taken, *rest])
            category = Category.exposed if kind >= FIRST_LINK else Category.compute
            shares.append(Share(category=category, label=self.name_of(kind), time_ns=length(rest)))
        idle = length(whole) - length(taken)
        shares.append(Share(category=Category.no_work, label="", time_ns=idle))
        order = list(Category)
        shares.sort(key=lambda share: (order.index(share.category), -share.time_ns, share.label))
        return DeviceAttribution(
            device=title,
            window_ns=length(whole),
            shares=tuple(share for share in shares if share.time_ns > 0),
            hidden_ns=0,
        )


def _in_rows(rows: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yields (row, span): each in the first row that is free, so that what is nested lies below."""
    ends: list[int] = []
    for span in sorted(rows, key=lambda row: (row[START], -row[END], row[KIND])):
        free = next((i for i, end in enumerate(ends) if end <= span[START]), len(ends))
        if free == len(ends):
            ends.append(0)
        ends[free] = span[END]
        yield free, span
