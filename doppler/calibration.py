"""Calibration of a job: run its real ops on every kind of device, keep what was measured.

The components are not timed in isolation but as ops of the running job, so that caches are as
warm and arguments as real as later: alone under the single-device plan, beside busy siblings under
a spread plan, for several environment counts, and on the layout that owns all cores.
"""

import dataclasses
import datetime
import json
import os
from dataclasses import dataclass
from pathlib import Path

from doppler.calibration_bench import (
    Bench,
    DispatchCost,
    MeasuredLayouts,
    Progress,
    core_layouts,
)
from doppler.config import AnyJobConfig, CalibrationSettings, JobConfig
from doppler.core.cluster import Cluster
from doppler.core.codecs.fields import decode, encode
from doppler.core.errors import FormatError
from doppler.core.hardware import Hardware
from doppler.core.serialize import read_json, write_atomic
from doppler.jobs import sized_jobs
from doppler.provenance import content_key, describe_machine, job_file_digest, versions
from executor.options import ExecutorOptions
from simulator.calibration.held_out import (
    FoldShift,
    HeldOutError,
    fold_shifts,
    held_out_errors,
    unsteady_text,
)
from simulator.calibration.launch import LaunchFit, fit_launches
from simulator.calibration.links import LinkFit
from simulator.calibration.noise import KindNoise, fit_noise
from simulator.costs.alpha_beta import with_fitted_links
from simulator.costs.measured import CostEntry, CostTable, fit_entries

SCHEMA_VERSION = 5
READ_VERSIONS = (2, 3, 4, 5)
"""Version 4 had no size of ops without flop; 3 no shifts; 2 no noise, launches, links, held_out."""
CACHE_VARIABLE = "XDG_CACHE_HOME"


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """What the running job says of an op kind on a device: times the table, in 1/1000."""

    kind: str
    device: str
    permille: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One line of provenance."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured of one job on one machine, as it is stored.

    Attributes:
        key: Content key of machine, versions and job.
        entries: Op times.
        dispatch: The runtime's own cost.
        publish_ns: From a producer's end to the arrival at an idle worker; 0 = not measured
            (one device has nobody to publish to).
        provenance: Where it comes from.
        factors: Corrections of stage III; none as measured.
        noise: Scatter of op times, per op kind.
        launches: Fixed cost and rate of op kinds that were measured at several sizes.
        links: Latency and bandwidth of links that copy; none within one host's cores.
        held_out: Error against windows that were left out of the fit.
        shifts: How far the windows are from each other.
    """

    key: str
    entries: tuple[CostEntry, ...]
    dispatch: tuple[DispatchCost, ...]
    publish_ns: int
    provenance: tuple[Text, ...]
    factors: tuple[Factor, ...] = ()
    noise: tuple[KindNoise, ...] = ()
    launches: tuple[LaunchFit, ...] = ()
    links: tuple[LinkFit, ...] = ()
    held_out: tuple[HeldOutError, ...] = ()
    shifts: tuple[FoldShift, ...] = ()

    def table(self) -> CostTable:
        """Returns the cost model of these measurements."""
        return CostTable(
            entries=self.entries,
            dispatch_ns={(row.device_kind, row.cores): row.time_ns for row in self.dispatch},
            provenance={line.name: line.value for line in self.provenance},
            factors_permille={(row.kind, row.device): row.permille for row in self.factors},
        )

    def with_factors_of(self, table: CostTable) -> "Calibration":
        """Returns the same measurements with the corrections of `table`."""
        factors = tuple(
            Factor(kind=kind, device=device, permille=permille)
            for (kind, device), permille in sorted(table.factors_permille.items())
        )
        return dataclasses.replace(self, factors=factors)

    def hardware(self, hardware: Hardware, kind: str = "cpu") -> Hardware:
        """Returns the hardware with the latency between parts of a processor, if measured.

        Args:
            hardware: As probed.
            kind: Kind of the processors that were measured.
        """
        if self.publish_ns == 0:
            return hardware
        return dataclasses.replace(
            hardware,
            processors=tuple(
                dataclasses.replace(p, publish_ns=self.publish_ns) if p.kind == kind else p
                for p in hardware.processors
            ),
        )

    def cluster(self, cluster: Cluster) -> Cluster:
        """Returns the cluster with measured numbers on those of its links that were measured."""
        pairs = {(link.src, link.dst) for link in cluster.links}
        fits = {(f.src, f.dst): f.model for f in self.links if (f.src, f.dst) in pairs}
        return with_fitted_links(cluster, fits)

    @property
    def warning(self) -> str | None:
        """One sentence where the measured windows disagree, None where they do not."""
        return unsteady_text(self.shifts)

    @property
    def publish_text(self) -> str:
        """The latency between workers in words."""
        return f"{self.publish_ns / 1e3:.1f} us" if self.publish_ns else "not measured"


@dataclass(frozen=True, slots=True)
class _Document:
    schema_version: int
    calibration: Calibration


def cache_folder(setting: str | None) -> Path:
    """Returns the folder of measured cost tables: the setting, or the user's cache."""
    if setting is not None:
        return Path(setting)
    base = os.environ.get(CACHE_VARIABLE) or str(Path.home() / ".cache")
    return Path(base) / "doppler" / "cost_tables"


def calibration_key(
    settings: AnyJobConfig,
    hardware: Hardware,
    calibration: CalibrationSettings,
    layouts: MeasuredLayouts | None = None,
    *,
    static_mps: bool = False,
) -> str:
    """Returns the content key: machine, versions (that of the file, too), job, how it is measured.

    The seed is not in it. Layouts are where they are not those of the cores, and static partitions
    of MPS where clients have them.

    A custom job's file counts by its content, not by where it lies.

    Raises:
        ConfigError: If that file cannot be read.
    """
    job = dataclasses.asdict(settings)
    if isinstance(settings, JobConfig):
        job["path"] = None if settings.path is None else job_file_digest(settings.path)
    measured = dataclasses.asdict(calibration)
    del measured["refresh"]
    what = {"job": job, "calibration": measured, "schema_version": SCHEMA_VERSION}
    if layouts is not None:
        what["layouts"] = layouts.names
    if static_mps:
        what["static_mps"] = True
    return content_key(hardware, what)


def calibration_path(
    settings: AnyJobConfig,
    hardware: Hardware,
    calibration: CalibrationSettings,
    cache: Path,
    layouts: MeasuredLayouts | None = None,
    *,
    static_mps: bool = False,
) -> Path:
    """Returns the file of a job's cost table in the cache, there or not."""
    key = calibration_key(settings, hardware, calibration, layouts, static_mps=static_mps)
    return cache / f"{key}.json"


def save_calibration(path: Path, calibration: Calibration) -> None:
    """Writes a calibration as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = encode(_Document(SCHEMA_VERSION, calibration))
    write_atomic(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def load_calibration(path: Path) -> Calibration:
    """Returns a stored calibration.

    Raises:
        FormatError: If the file is damaged, of another version, or has unknown keys.
    """
    document = read_json(path)
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version not in READ_VERSIONS:
        raise FormatError(
            f"cost table {str(path)!r} has schema_version {version!r}, and this version reads "
            f"{', '.join(map(str, READ_VERSIONS))}"
        )
    stored = document.get("calibration")
    if version < SCHEMA_VERSION and isinstance(stored, dict):
        added = ("noise", "launches", "links", "held_out", "shifts")
        document = {**document, "calibration": {**{key: [] for key in added}, **stored}}
    calibration: Calibration = decode(_Document, document, path.name).calibration
    return calibration


def load_or_calibrate(
    settings: AnyJobConfig,
    hardware: Hardware,
    calibration: CalibrationSettings,
    cache: Path,
    *,
    seed: int,
    options: ExecutorOptions,
    progress: Progress,
    layouts: MeasuredLayouts | None = None,
) -> tuple[Calibration, bool]:
    """Returns the calibration of a job, and whether it came from the cache."""
    path = calibration_path(
        settings, hardware, calibration, cache, layouts, static_mps=options.static_mps
    )
    key = path.stem
    if path.exists() and not calibration.refresh:
        stored = load_calibration(path)
        if stored.key != key:
            raise FormatError(f"cost table {str(path)!r} was made for key {stored.key}, not {key}")
        return stored, True
    measured = calibrate(
        settings,
        hardware,
        calibration,
        seed=seed,
        options=options,
        progress=progress,
        layouts=layouts,
    )
    save_calibration(path, measured)
    return measured, False


def calibrate(
    settings: AnyJobConfig,
    hardware: Hardware,
    calibration: CalibrationSettings,
    *,
    seed: int,
    options: ExecutorOptions,
    progress: Progress,
    layouts: MeasuredLayouts | None = None,
) -> Calibration:
    """Measures the job's components on layouts (None: of the cores), returns the calibration."""
    bench = Bench(calibration, options, progress)
    cpu = next(p for p in hardware.processors if p.kind == "cpu")
    where = layouts or core_layouts(cpu)
    for job, is_itself in sized_jobs(settings, calibration.env_counts, seed):
        if where.spread is not None:
            bench.measure_spread(job, hardware, where.spread)
        if is_itself or where.spread is None:
            bench.measure_single(job, hardware, where.single)
    observations = [seen for fold in bench.folds for seen in fold]
    entries = fit_entries(observations)
    return Calibration(
        key=calibration_key(
            settings, hardware, calibration, layouts, static_mps=options.static_mps
        ),
        entries=entries,
        dispatch=bench.dispatch(),
        publish_ns=bench.publish_ns(),
        provenance=tuple(
            Text(name=name, value=value)
            for name, value in {
                "machine": describe_machine(hardware),
                "job": settings.name,
                "measured": datetime.datetime.now().isoformat(timespec="seconds"),
                "iterations": str(calibration.iterations),
                **versions(),
            }.items()
        ),
        noise=fit_noise(observations, entries),
        launches=fit_launches(observations),
        links=bench.links(),
        held_out=held_out_errors(bench.folds),
        shifts=fold_shifts(bench.folds),
    )
