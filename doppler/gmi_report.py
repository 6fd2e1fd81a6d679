"""The report of user-written GMIs: a result folder that `doppler report` shows."""

import sys
from pathlib import Path

from doppler.core.cluster import Cluster
from doppler.core.errors import ConfigError
from doppler.gmi import GMIManager
from doppler.gmi_trace import GMITrace
from doppler.report.html import write_report
from doppler.report.model import Fact, RunReport
from doppler.reporting import core_facts, provenance
from executor.probe import ProbeResult, probe

NOTE = "User-written GMIs: which runs where is the user's choice, and no plan was made."


def write_gmi_report(manager: GMIManager, folder: Path, title: str = "GMIs as written") -> Path:
    """Writes the manager's last run into a folder and returns the page's path.

    Raises:
        ConfigError: If no run has ended well.
    """
    if manager.trace is None:
        raise ConfigError("a report shows a run of the GMIs that has ended well, and none has")
    found = probe(shm_dir=manager.shm_dir)
    folder.mkdir(parents=True, exist_ok=True)
    return write_report(folder, gmi_report(manager.trace, title, manager.seed, found))


def gmi_report(trace: GMITrace, title: str, seed: int, found: ProbeResult) -> RunReport:
    """Returns a run as a report; it compares no plans.

    Args:
        trace: What the GMIs did.
        title: Heading.
        seed: Of the whole set.
        found: The machine.
    """
    too_many = [
        f"{spec.title}: its {dropped:,} oldest spans were too many to keep."
        for spec, dropped in zip(trace.gmis, trace.num_dropped, strict=True)
        if dropped
    ]
    links = ", ".join(link.name for link in trace.communication.links)
    return RunReport(
        title=title,
        objective="period",
        job=title,
        job_facts=(
            Fact("GMIs", str(len(trace.gmis))),
            Fact("roles", ", ".join(sorted({spec.role for spec in trace.gmis}))),
            Fact("links", links or "none"),
            Fact("training steps", str(trace.num_iterations)),
            Fact("seconds", f"{(trace.end_ns - trace.begin_ns) / 1e9:.3f}"),
        ),
        cluster=trace.cluster.name,
        cluster_facts=(
            *(
                Fact(spec.device.name, f"GMI {spec.gmi_id}, role {spec.role}")
                for spec in trace.gmis
            ),
            *core_facts(Cluster(name="GMIs", devices=tuple(s.device for s in trace.gmis))),
        ),
        planners=(),
        ratios=(),
        curves=(),
        simulated=None,
        measured=trace.timeline(),
        time_tables=(trace.time_table(),),
        kind_errors=(),
        op_errors=(),
        reward=(),
        exploration=None,
        provenance=provenance(sys.argv, seed, found),
        notes=(*too_many, NOTE),
    )
