"""The paper's cost projections of gradient reductions, printed and as its theory gives them.

n GPUs with m GMIs each, S bytes per member; IP goes over the PCIe bandwidth, RP over NVLink. The
default choice of a composition is by simulation (`doppler.graphs.collective_ops`); these are for
comparison with the paper.

Source: GMI-DRL, section 4, table of compositions. Costs are exact fractions of a nanosecond.
"""

from fractions import Fraction

from doppler.coordinator.reading import Reading
from doppler.core.cluster import NS_PER_S
from doppler.core.errors import ConfigError


def ring_cost_ns(num_members: int, num_bytes: int, bytes_per_s: int) -> Fraction:
    """Returns 2 (n - 1) S / (n B): Cost_ip or Cost_rp, depending on the bandwidth; 0 for n = 1."""
    _check(num_members, 1)
    return Fraction(2 * (num_members - 1) * num_bytes * NS_PER_S, num_members * bytes_per_s)


def ip_only_ns(n: int, m: int, num_bytes: int, ip_bytes_per_s: int) -> Fraction:
    """Returns the cost of reducing all n m members through the host."""
    _check(n, m)
    return ring_cost_ns(n * m, num_bytes, ip_bytes_per_s)


def rp_only_ns(n: int, m: int, num_bytes: int, rp_bytes_per_s: int) -> Fraction:
    """Returns the cost of m parallel rings and one cross ring, 2 Cost_rp (one ring for m = 1).

    Raises:
        ConfigError: If there are more GMIs per GPU than GPUs, which the paper excludes.
    """
    _check(n, m)
    if m > n:
        raise ConfigError(f"RP-only needs at most n = {n} GMIs per GPU, and there are {m}")
    return ring_cost_ns(n, num_bytes, rp_bytes_per_s) * (2 if m > 1 else 1)


def hybrid_ns(
    n: int,
    m: int,
    k: int,
    num_bytes: int,
    ip_bytes_per_s: int,
    rp_bytes_per_s: int,
    reading: Reading = Reading.corrected,
) -> Fraction:
    """Returns the cost of hybrid(k): k rings beside a meeting of N' = n (m - k) + k members.

    The printed projection of the meeting is N' / n of Cost_ip, linear in the members; the theory,
    which is the corrected reading, gives 2 (N' - 1) S / (N' B). Without a ring there is no ring to
    pay.

    Raises:
        ConfigError: If k is out of range, or n = 1 is asked as printed, where Cost_ip is 0.
    """
    _check(n, m)
    if not 0 <= k <= m:
        raise ConfigError(f"hybrid has 0 to {m} rings, and {k} are asked")
    is_printed = reading is Reading.printed
    if is_printed and n == 1:
        raise ConfigError("the printed projection divides by n - 1, and n is 1")
    meeting = n * (m - k) + k
    rings = ring_cost_ns(n, num_bytes, rp_bytes_per_s) if k else Fraction(0)
    if is_printed:
        return Fraction(meeting, n) * ring_cost_ns(n, num_bytes, ip_bytes_per_s) + rings
    return ring_cost_ns(meeting, num_bytes, ip_bytes_per_s) + rings


def _check(n: int, m: int) -> None:
    if n < 1 or m < 1:
        raise ConfigError(f"there is at least one GPU and one GMI each, and n = {n}, m = {m}")
