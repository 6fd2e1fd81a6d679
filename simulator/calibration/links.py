"""Latency and bandwidth of links, from the transfers of measured traces."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from doppler.core.errors import DopplerError
from simulator.costs.alpha_beta import (
    AlphaBeta,
    TransferSample,
    fit_alpha_beta,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """A link as measured.

    Attributes:
        src, dst: Names of its devices.
        latency_ns: Alpha.
        bytes_per_s: Beta.
        median_error: Median of |time of the model / measured time - 1|, noise included.
        count: Transfers behind it.
    """

    src: str
    dst: str
    latency_ns: int
    bytes_per_s: int
    median_error: float
    count: int

    @property
    def model(self) -> AlphaBeta:
        """The same as a model of transfers."""
        return AlphaBeta(latency_ns=self.latency_ns, bytes_per_s=self.bytes_per_s)


def fit_links(samples: Mapping[tuple[str, str], Sequence[TransferSample]]) -> tuple[LinkFit, ...]:
    """Returns a fit per link, by source and destination.

    Left out are links of one size of message, and those whose larger messages were not slower.

    Args:
        samples: (source, destination) -> its copies in all traces (`transfer_samples`). A copy's
            time begins when it has all its buses: waiting does not count.
    """
    fits: list[LinkFit] = []
    for (src, dst), rows in sorted(samples.items()):
        try:
            fit = fit_alpha_beta(rows)
        except DopplerError:
            continue
        fits.append(
            LinkFit(
                src=src,
                dst=dst,
                latency_ns=fit.model.latency_ns,
                bytes_per_s=fit.model.bytes_per_s,
                median_error=fit.median_error,
                count=fit.num_samples,
            )
        )
    return tuple(fits)
