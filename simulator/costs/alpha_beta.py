"""The alpha-beta model of a transfer, and its fit to samples.

A message of n bytes takes alpha + n / beta: a latency and a bandwidth. Half of the bandwidth is
reached at n = alpha * beta. Source: Hockney, "The communication challenge for MPP: Intel Paragon
and Meiko CS-2", Parallel Computing 20(3), 1994 (there startup time and asymptotic bandwidth).
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from doppler.core.cluster import NS_PER_S, Cluster, Link
from doppler.core.errors import DopplerError
from doppler.core.problem import Problem
from doppler.core.trace import Trace
from simulator.calibration.affine import fit_affine


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSample:
    """One measured transfer: its size, and the time from its start to its arrival."""

    num_bytes: int
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlphaBeta:
    """Latency and bandwidth of one way between two devices."""

    latency_ns: int
    bytes_per_s: int

    def __post_init__(self) -> None:
        if self.latency_ns < 0 or self.bytes_per_s <= 0:
            raise DopplerError(
                f"alpha is at least 0 ns and beta above 0 bytes/s, and they are "
                f"{self.latency_ns} and {self.bytes_per_s}"
            )

    def time_ns(self, num_bytes: int) -> int:
        """Returns the time of a message, as an idle link with these numbers takes it."""
        link = Link(src="a", dst="b", bytes_per_s=self.bytes_per_s)
        return self.latency_ns + link.occupancy_ns(num_bytes)

    def on(self, link: Link) -> Link:
        """Returns `link` with these numbers; its buses stay."""
        return replace(link, latency_ns=self.latency_ns, bytes_per_s=self.bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlphaBetaFit:
    """A fitted model.

    Attributes:
        model: Latency and bandwidth.
        median_error: Median of |time of the model / measured time - 1|.
        num_samples: Samples behind it.
    """

    model: AlphaBeta
    median_error: float
    num_samples: int


def fit_alpha_beta(samples: Sequence[TransferSample]) -> AlphaBetaFit:
    """Returns the model with the least sum of relative absolute errors.

    Small and large messages count alike, and a few outliers move nothing (`fit_affine`); a latency
    below 0 is set to 0 and the bandwidth fitted anew.

    Raises:
        DopplerError: If there are not two sizes, a duration is not positive, or larger messages are
            not slower.
    """
    if len({sample.num_bytes for sample in samples}) < 2:
        raise DopplerError(
            f"latency and bandwidth are fitted from messages of two sizes or more, and there are "
            f"{len(samples)} samples of {len({s.num_bytes for s in samples})}"
        )
    shortest = min(sample.duration_ns for sample in samples)
    if shortest <= 0:
        raise DopplerError(f"a measured transfer takes more than 0 ns, and one took {shortest}")
    line = fit_affine([s.num_bytes for s in samples], [s.duration_ns for s in samples])
    if line.slope_ns <= 0:
        raise DopplerError(
            f"a bandwidth is fitted where larger messages take longer, and over {len(samples)} "
            f"samples the time grows by {line.slope_ns:.3g} ns per byte"
        )
    model = AlphaBeta(
        latency_ns=round(line.intercept_ns),
        bytes_per_s=max(1, round(NS_PER_S / line.slope_ns)),
    )
    errors = [abs(model.time_ns(s.num_bytes) / s.duration_ns - 1.0) for s in samples]
    return AlphaBetaFit(
        model=model, median_error=statistics.median(errors), num_samples=len(samples)
    )


def transfer_samples(
    problem: Problem, trace: Trace, skip_iterations: int = 0
) -> dict[tuple[str, str], list[TransferSample]]:
    """Returns the transfers of a trace as samples, per (source, destination) device name.

    The time runs from the start of the transfer, so that waiting for buses is not in it. Zero-copy
    links are left out.
    """
    samples: dict[tuple[str, str], list[TransferSample]] = {}
    devices = problem.cluster.devices
    for span in trace.transfers:
        link = problem.cluster.link_table[span.src, span.dst]
        if span.iteration < skip_iterations or link.bytes_per_s is None:
            continue
        num_bytes = problem.graph.ops[span.op].outputs[span.output]
        pair = (devices[span.src].name, devices[span.dst].name)
        samples.setdefault(pair, []).append(
            TransferSample(num_bytes=num_bytes, duration_ns=span.arrival_ns - span.start_ns)
        )
    return samples


def with_fitted_links(cluster: Cluster, fits: Mapping[tuple[str, str], AlphaBeta]) -> Cluster:
    """Returns the cluster with fitted numbers on the links named (source, destination).

    Raises:
        DopplerError: If a pair has no link of its own (a route is fitted through its links).
    """
    pairs = {(link.src, link.dst) for link in cluster.links}
    for pair in fits:
        if pair not in pairs:
            raise DopplerError(
                f"a fit belongs to a link, and cluster {cluster.name!r} has none from {pair[0]!r} "
                f"to {pair[1]!r}"
            )
    links = tuple(
        fits[link.src, link.dst].on(link) if (link.src, link.dst) in fits else link
        for link in cluster.links
    )
    return replace(cluster, links=links)
