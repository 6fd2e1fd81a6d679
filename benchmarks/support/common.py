"""The one line that every benchmark ends with, and the machine in words."""

import datetime
import json
import os
import platform
import sys
from collections.abc import Mapping

from doppler.provenance import revision, versions


def machine() -> str:
    """Returns processor, usable cores and Python version in words."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
        model = names[0] if names else model
    except OSError:
        pass
    return f"{model}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"


def finish(
    benchmark: str, figures: Mapping[str, float], targets: Mapping[str, str], *, seed: int
) -> None:
    """Prints the figures against their targets, then the JSON line that scripts read."""
    for name, value in figures.items():
        target = f"   target {targets[name]}" if name in targets else ""
        print(f"{name:40s} {value:12.4f}{target}")
    document = {
        "benchmark": benchmark,
        "figures": {name: round(float(value), 6) for name, value in figures.items()},
        "targets": dict(targets),
        "command": " ".join([os.path.basename(sys.executable), *sys.argv]),
        "machine": machine(),
        "seed": seed,
        "revision": revision(),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    print(json.dumps(document, allow_nan=False))
