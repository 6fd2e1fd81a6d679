"""`doppler calibrate`: measure a job, show what was fitted, check it where that is asked for."""

from doppler.calibration import (
    Calibration,
    cache_folder,
    calibration_path,
    load_calibration,
    load_or_calibrate,
)
from doppler.calibration_check import check_calibration, save_check
from doppler.calibration_view import (
    check_tables,
    draw_check,
    entry_table,
    fit_table,
    launch_table,
)
from doppler.config import CalibrateConfig
from doppler.console import View
from doppler.core.errors import FormatError
from executor.probe import probe


def calibrate_job(config: CalibrateConfig, view: View) -> None:
    """Measures the components of a job whose settings are resolved, and writes what was found.

    A check stores its chart and its numbers beside the cost table.
    """
    hardware = probe(shm_dir=config.executor.shm_dir).hardware
    options = config.executor.options()
    cache = cache_folder(config.cost_cache)
    path = calibration_path(config.job, hardware, config.calibration, cache)
    previous: Calibration | None = None
    if config.calibration.refresh and path.exists():
        try:
            previous = load_calibration(path)
        except FormatError as error:
            view.line(f"the stored cost table is not compared: {error}")
    with view.progress("measuring the job's ops", None) as advance:
        calibration, from_cache = load_or_calibrate(
            config.job,
            hardware,
            config.calibration,
            cache,
            seed=config.seed,
            options=options,
            progress=lambda note: advance(1, note),
        )
    stored = " (stored)" if from_cache else ""
    view.show(entry_table(calibration, f"{config.job.name}: op times{stored}"))
    view.show(launch_table(calibration))
    view.show(fit_table(calibration))
    view.line(f"publish latency: {calibration.publish_text}")
    for cost in calibration.dispatch:
        view.line(f"dispatch on {cost.cores} core(s): {cost.time_ns / 1e3:.1f} us per op")
    for link in calibration.links:
        view.line(
            f"link {link.src} to {link.dst}: {link.latency_ns / 1e3:.1f} us, "
            f"{link.bytes_per_s / 1e9:.2f} GB/s, median error {link.median_error:.1%}"
        )
    if calibration.warning is not None:
        view.line(f"warning: {calibration.warning}")
    view.line(f"cost table: {path}")
    if not config.check.enabled:
        return
    with view.progress("measuring plans not seen before", None) as advance:
        check = check_calibration(
            config.job,
            hardware,
            calibration,
            config.check,
            previous=previous,
            seed=config.seed,
            options=options,
            progress=lambda note: advance(1, note),
        )
    for table in check_tables(check):
        view.show(table)
    numbers, chart = path.with_suffix(".check.json"), path.with_suffix(".check.png")
    save_check(numbers, check)
    draw_check(chart, check)
    view.line(f"numbers: {numbers}")
    view.line(f"chart: {chart}")
