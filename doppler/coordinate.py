"""`doppler coordinate`: which layout, template or learned plan, and shards a job should run with.

Per global batch every template and the policy's plan are simulated on every even layout and with
several numbers of shards, with the job's measured costs; the best few are measured in turns on this
machine. Then GMI-DRL's own search and its resource model are compared with the simulation.
"""

import dataclasses
from collections.abc import Sequence

from rich.table import Table

from doppler.all_reduce_choice import with_all_reduce
from doppler.calibration import Calibration, cache_folder, load_or_calibrate
from doppler.compose import overridden_keys
from doppler.config import JobConfig
from doppler.console import View
from doppler.coordinate_config import CoordinateConfig
from doppler.coordinate_cut import make_cut
from doppler.coordinate_output import Choice, check_folder, fastest, write_choices
from doppler.coordinate_rows import Batch, Row, Verified
from doppler.coordinate_search import show_searches
from doppler.coordination import Coordination
from doppler.coordinator.reading import Reading
from doppler.coordinator.resource_model import (
    Occupancy,
    Prediction,
    Template,
    predict,
    rank,
    templates_for,
)
from doppler.coordinator.variants import Refusal, variant_name
from doppler.core.errors import ConfigError
from doppler.core.job_mode import JobMode
from doppler.core.layout import DEVICE_KIND, Backend
from doppler.jobs import AUTO, resolve_job
from doppler.planners.learned import SOURCE
from doppler.static_mps import check_static_mps
from executor.probe import probe


def coordinate(config: CoordinateConfig, command: Sequence[str]) -> None:
    """Calibrates, ranks everything per batch, measures the best, compares the searches."""
    settings = resolve_job(config.job, overridden_keys(command))
    folder = check_folder(config.output)
    names = _wanted(config, settings.mode)
    kind = DEVICE_KIND[config.backend]
    check_static_mps(config.executor, {kind}, f"a layout of backend={config.backend.value}")
    view = View()
    if config.backend is not Backend.core_group and settings.all_reduce == AUTO:
        raise ConfigError(
            f"job.all_reduce=auto compares on cores, and backend is {config.backend.value}: name a "
            "composition"
        )
    settings = with_all_reduce(
        settings,
        config.calibration,
        cache_folder(config.cost_cache),
        seed=config.seed,
        shm_dir=config.executor.shm_dir,
        view=view,
    )
    coordination, calibrations = _calibrated(config, settings, view)
    counts = sorted(
        {max(1, round(settings.envs_per_shard * c)) for c in config.calibration.env_counts}
    )
    refused: dict[Refusal, list[Batch]] = {}
    choices: list[Choice] = []
    for count in counts:
        rows: list[Row] = []
        with view.progress(f"placing {count * settings.num_shards} environments", None) as advance:
            for batch in coordination.batches(count):
                everything, not_possible = coordination.templates(batch)
                templates = [row for row in everything if row.variant.template.value in names]
                for refusal in not_possible:
                    if refusal.template.value in names:
                        refused.setdefault(refusal, []).append(batch)
                rows += templates
                if SOURCE in names:
                    rows += coordination.learned(templates, config.budget)
                advance(1, f"{batch.num_shards} shards")
        if rows:
            choices.append(_show_batch(config, coordination, rows, view))
    if choices:
        _show_fastest(choices, view)
        if folder is not None:
            best = write_choices(folder, choices, coordination, calibrations, config, command)
            view.line(f"the job as chosen, by batch: {folder}; the fastest: doppler run {best}")
    _show_refusals(refused, view)
    _show_model(coordination, settings.envs_per_shard, view)
    show_searches(config, coordination, counts, view)


def _wanted(config: CoordinateConfig, mode: JobMode) -> set[str]:
    """Returns the names of what is compared, refused if the mode has none of the templates."""
    possible = {template.value for template in templates_for(mode)}
    if config.templates is None:
        return possible | {SOURCE}
    names = set(config.templates)
    if not names & possible:
        raise ConfigError(
            f"templates of a {mode.value} job are {', '.join(sorted(possible))}, and templates is "
            f"{config.templates}"
        )
    return names


def _calibrated(
    config: CoordinateConfig, settings: JobConfig, view: View
) -> tuple[Coordination, dict[bool, Calibration]]:
    """Returns the job with measured costs of both forms of its graph, and the measurements."""
    found = probe(shm_dir=config.executor.shm_dir)
    hardware = found.hardware
    options = config.executor.options()
    cut = make_cut(found, config.backend, config.max_gmis, static_mps=options.static_mps)
    calibrations: dict[bool, Calibration] = {}
    warnings: list[str | None] = []
    with view.progress("measuring the job's ops", None) as advance:
        for fused in (True, False):
            calibration, _ = load_or_calibrate(
                dataclasses.replace(settings, fused=fused),
                hardware,
                config.calibration,
                cache_folder(config.cost_cache),
                seed=config.seed,
                options=options,
                progress=lambda note: advance(1, note),
                layouts=cut.measured,
            )
            calibrations[fused] = calibration
            warnings.append(calibration.warning)
            hardware = calibration.hardware(hardware, cut.kind) if fused else hardware
    for text in filter(None, warnings):
        view.line(f"warning: {text}")
    tables = {fused: calibration.table() for fused, calibration in calibrations.items()}
    return Coordination(settings, hardware, tables, config.seed, cut, options), calibrations


def _show_batch(
    config: CoordinateConfig, coordination: Coordination, rows: Sequence[Row], view: View
) -> Choice:
    """Shows what was found at one global batch, best first, the first few measured.

    Returns:
        What to run: as measured, else the best in simulation.
    """
    ranked = sorted(rows, key=lambda row: -row.steps_per_s)
    checked = _to_verify(ranked, config.verify)
    found: Verified | None = None
    if checked:
        with view.progress("measuring the best", None):
            found = coordination.verify(checked, config.windows, config.iterations)
    num_envs = ranked[0].batch.num_envs
    settings = coordination.settings
    table = Table(
        title=f"{settings.name}: {num_envs:,} environments, "
        f"global batch {num_envs * settings.horizon:,}"
    )
    for heading in ("template (E+A+T GMIs)", "shards", "simulated", "plans", "measured steps/s"):
        is_name = heading.startswith("template")
        table.add_column(heading, justify="left" if is_name else "right", no_wrap=True)
    for row in ranked:
        measured = ""
        if found is not None and row in checked:
            rate = found.rates[checked.index(row)]
            measured = "not possible"
            if rate is not None:
                measured = f"{rate.value:,.0f} [{rate.low:,.0f}, {rate.high:,.0f}]"
        table.add_row(
            row.name,
            str(row.batch.num_shards),
            f"{row.steps_per_s:,.0f}",
            f"{row.simulations:,}",
            measured,
        )
    view.show(table)
    learned = [row for row in ranked if row.is_learned]
    templates = [row for row in ranked if not row.is_learned]
    if learned and templates:
        gain = learned[0].steps_per_s / templates[0].steps_per_s
        view.line(
            f"learned placement over the best template: {gain:.3f} in simulation "
            f"({sum(row.simulations for row in learned):,} plans, "
            f"{sum(row.seconds for row in learned):.1f} s)"
        )
    for index, reason in (found.failed if found is not None else {}).items():
        view.line(f"not possible as measured: {checked[index].name}: {reason}")
    if found is None or found.chosen is None:
        return Choice(row=ranked[0], measured=None)
    row = checked[found.chosen]
    view.line(
        f"run: {row.name}, shards: {row.batch.num_shards} (the best template measured, unless "
        f"another was faster beyond doubt)"
    )
    return Choice(row=row, measured=found.rates[found.chosen])


def _show_fastest(choices: Sequence[Choice], view: View) -> None:
    """Shows which global batch yields the most steps per second."""
    best = fastest(choices)
    source = "simulated" if best.measured is None else "measured"
    view.line(
        f"most steps per second of all batches: {best.row.batch.num_envs:,} environments, "
        f"{best.row.name}, shards: {best.row.batch.num_shards}: {best.steps_per_s:,.0f} {source} "
        "(a larger batch learns less per step, which nothing here measures)"
    )


def _to_verify(ranked: Sequence[Row], count: int) -> list[Row]:
    """Returns the first rows, and the best template and learned plan if they are not among them."""
    if count == 0:
        return []
    kinds = {row.is_learned for row in ranked}
    best = [next(row for row in ranked if row.is_learned is kind) for kind in sorted(kinds)]
    return [row for index, row in enumerate(ranked) if index < count or row in best]


def _show_refusals(refused: dict[Refusal, list[Batch]], view: View) -> None:
    """Shows every reason, by template, with where it was met."""
    for refusal, batches in sorted(refused.items(), key=lambda pair: pair[0].template.value):
        where = ", ".join(f"{b.num_envs} environments in {b.num_shards} shards" for b in batches)
        view.line(
            f"not possible: {variant_name(refusal.template, refusal.split)} on {refusal.layout} "
            f"({where}): {refusal.reason}"
        )


def _show_model(coordination: Coordination, envs_per_shard: int, view: View) -> None:
    """Shows what the paper's resource model says of the job's own batch, by template."""
    batch = Batch(
        num_envs=envs_per_shard * coordination.settings.num_shards,
        num_shards=coordination.settings.num_shards,
    )
    roles = coordination.roles(batch)
    layout = coordination.layouts[max(coordination.layouts)]
    links = layout.apply(coordination.hardware).links
    mode = coordination.settings.mode
    rates = [link.bytes_per_s for link in links if link.bytes_per_s is not None]

    def predicted(template: Template, occupancy: Occupancy, reading: Reading) -> Prediction:
        return predict(
            template,
            roles.profile,
            mode,
            resource_per_gpu=float(coordination.cut.num_processors),
            latency_ns=max((link.latency_ns for link in links), default=0),
            bytes_per_s=min(rates, default=None),  # none: workers of one host share their tensors
            num_gmis=len(layout.slices),
            occupancy=occupancy,
            reading=reading,
        )

    templates = templates_for(mode)
    occupancy = coordination.cut.occupancy
    predictions = rank([predicted(t, occupancy, Reading.corrected) for t in templates])
    table = Table(
        title=f"GMI-DRL's resource model on measured op times ({roles.dominant.value} decides)"
    )
    for heading in (
        "template",
        f"R, part of a {coordination.cut.kind}",
        "T + COM",
        "predicted steps/s",
        "printed",
    ):
        table.add_column(heading, justify="left" if heading == "template" else "right")
    steps = batch.envs_per_shard * coordination.settings.horizon
    for found in predictions:
        printed = predicted(found.template, Occupancy.time_weighted, Reading.printed)
        table.add_row(
            found.template.value,
            f"{found.resource:.2f}",
            f"{found.iteration_ns / 1e6:.2f} ms",
            f"{found.iterations_per_s * steps:,.0f}",
            f"{printed.iterations_per_s * steps:,.0f}",
        )
    view.show(table)
    view.line("printed: the paper's reading, where what one role leaves idle serves the others")
