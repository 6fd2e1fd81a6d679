"""What calibration found, as tables for a terminal and as a chart of predicted against measured."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from doppler.calibration import Calibration
from doppler.calibration_check import CalibrationCheck

MARKS = ("x", "s", "o")
COLORS = ("#b0642e", "#7a7a7a", "#1f5fa8")


def entry_table(calibration: Calibration, title: str) -> Table:
    """Returns the table of op times."""
    table = _table(title, ("op kind", "device", "Mflop", "median (ms)", "spread (ms)"), 2)
    for heading in ("slowdown", "n"):
        table.add_column(heading, justify="right")
    for entry in calibration.entries:
        table.add_row(
            entry.kind,
            f"{entry.cores} core(s)",
            f"{entry.flop / 1e6:.2f}",
            f"{entry.median_ns / 1e6:.3f}",
            f"{entry.spread_ns / 1e6:.3f}",
            f"{entry.slowdown_permille / 10:.1f} %",
            str(entry.count),
        )
    return table


def fit_table(calibration: Calibration) -> Table:
    """Returns noise and held-out error per op kind."""
    table = _table(
        "scatter, and error against windows left out of the fit",
        ("op kind", "sigma", "beyond 3 sigma", "median error", "bias", "n"),
    )
    noise = {row.kind: row for row in calibration.noise}
    for row in calibration.held_out:
        seen = noise.get(row.kind)
        table.add_row(
            row.kind,
            f"{seen.sigma:.3f}" if seen else "",
            f"{seen.tail_share:.1%}" if seen else "",
            f"{row.median_error:.1%}",
            f"{row.bias:+.1%}",
            str(row.count),
        )
    return table


def launch_table(calibration: Calibration) -> Table:
    """Returns fixed cost and rate per op kind."""
    table = _table(
        "time = launch + flop / rate",
        ("op kind", "device", "launch (us)", "Gflop/s", "median error", "n"),
        2,
    )
    for fit in calibration.launches:
        table.add_row(
            fit.kind,
            f"{fit.cores} core(s)" if fit.cores else f"share {fit.share:g}",
            f"{fit.launch_ns / 1e3:.1f}",
            f"{fit.flop_per_s / 1e9:.2f}",
            f"{fit.median_error:.1%}",
            str(fit.count),
        )
    return table


def check_tables(check: CalibrationCheck) -> tuple[Table, Table]:
    """Returns error per op kind, and period per plan, before and after calibration."""
    kinds = _table(
        f"{check.job}: error of op times, median |error| (bias)",
        ("op kind", "ops", "measured (ms)", *check.models),
    )
    for row in check.kinds:
        kinds.add_row(
            row.kind,
            str(row.count),
            f"{row.measured_ns / 1e6:.2f}",
            *(
                f"{error:.1%} ({bias:+.1%})"
                for error, bias in zip(row.median_error, row.bias, strict=True)
            ),
        )
    plans = _table(
        f"{check.job}: period of plans that calibration has not seen",
        ("plan", "measured (ms)", *(f"{model} (ms)" for model in check.models)),
    )
    for plan in check.plans:
        seen = plan.measured_ns
        plans.add_row(
            plan.plan,
            f"{seen.value / 1e6:.2f} [{seen.low / 1e6:.2f}, {seen.high / 1e6:.2f}]",
            *(f"{ns / 1e6:.2f} ({ns / seen.value - 1:+.1%})" for ns in plan.predicted_ns),
        )
    plans.add_row("median |error|", "", *(f"{error:.1%}" for error in check.period_errors))
    return kinds, plans


def draw_check(path: Path, check: CalibrationCheck) -> None:
    """Draws predicted against measured times of ops and of plans, a colour per model."""
    import matplotlib  # noqa: PLC0415 - slow to import, and needed here only

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, (ops, plans) = plt.subplots(1, 2, figsize=(12, 6.2), layout="constrained")
    shown = [point for point in check.ops if point.measured_ns > 0]
    ends = [point.measured_ns / 1e6 for point in shown]
    periods = [plan.measured_ns.value / 1e6 for plan in check.plans]
    for at, name in enumerate(check.models):
        style = {"marker": MARKS[at - len(check.models)], "color": COLORS[at - len(check.models)]}
        total = check.kinds[-1]
        times = [max(1, point.predicted_ns[at]) / 1e6 for point in shown]
        ops.scatter(
            [point.measured_ns / 1e6 for point in shown],
            times,
            s=16,
            alpha=0.55,
            linewidths=1,
            label=f"{name}: median error {total.median_error[at]:.1%}",
            **style,
        )
        ends += times
        values = [plan.predicted_ns[at] / 1e6 for plan in check.plans]
        low = [(p.measured_ns.value - p.measured_ns.low) / 1e6 for p in check.plans]
        high = [(p.measured_ns.high - p.measured_ns.value) / 1e6 for p in check.plans]
        plans.errorbar(
            [plan.measured_ns.value / 1e6 for plan in check.plans],
            values,
            xerr=(low, high),
            linestyle="none",
            capsize=3,
            label=f"{name}: median error {check.period_errors[at]:.1%}",
            **style,
        )
        periods += values
    ops.set(xscale="log", yscale="log", title=f"{len(shown)} ops (on a device, under a plan)")
    plans.set(title=f"{len(check.plans)} plans that calibration has not seen")
    for axis, what, values in ((ops, "time of an op", ends), (plans, "period", periods)):
        limits = _limits(values, axis is ops)
        axis.plot(limits, limits, linestyle="--", color="black", linewidth=1, label="equal")
        axis.set(xlabel=f"measured {what} (ms)", ylabel=f"predicted {what} (ms)")
        axis.grid(alpha=0.25)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncol=2, fontsize=9)
    plans.set_xlabel("measured period (ms), median with 95 % interval")
    figure.suptitle(f"{check.job}: predicted against measured ({check.machine})", fontsize=11)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _limits(values: Sequence[float], is_log: bool) -> tuple[float, float]:
    if is_log:
        return min(values) / 1.5, max(values) * 1.5
    return 0.0, max(values) * 1.1


def _table(title: str, headings: Sequence[str], num_left: int = 1) -> Table:
    table = Table(title=title)
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at < num_left else "right")
    return table
