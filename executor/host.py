"""What the operating system grants this process: cores, model, memory."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCpu:
    """The CPU as this process may use it.

    Attributes:
        model: What the vendor calls it.
        core_ids: Cores that the process may run on, cut to the quota.
        num_cores: Cores of the host.
        quota_cores: Cores' worth of time that a control group grants, or None.
        memory_bytes: The smallest of installed memory and control group limits.
        limit_path: The control group file that limits the memory, or None.
    """

    model: str
    core_ids: tuple[int, ...]
    num_cores: int
    quota_cores: float | None
    memory_bytes: int
    limit_path: str | None


def read_host_cpu(root: Path = Path("/")) -> HostCpu:
    """Returns the CPU of this host; `root` holds `proc` and `sys`."""
    allowed = sorted(os.sched_getaffinity(0))
    quota = min(_quotas(root), default=None)
    usable = len(allowed) if quota is None else max(1, min(len(allowed), int(quota)))
    total = _mem_info_bytes(root, "MemTotal")
    limit, path = min(_memory_limits(root), default=(total, None))
    return HostCpu(
        model=_model(root),
        core_ids=tuple(allowed[:usable]),
        num_cores=os.cpu_count() or len(allowed),
        quota_cores=quota,
        memory_bytes=min(total, limit),
        limit_path=path if limit < total else None,
    )


def cpu_times() -> tuple[int, int]:
    """Returns clock ticks that all processes but this one's family used, and the time in ns.

    The family is this process and the children that it has waited for.
    """
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(value) for value in file.readline().split()[1:]]
    all_ticks = sum(fields) - fields[3] - fields[4]
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return all_ticks - round(own * os.sysconf("SC_CLK_TCK")), time.monotonic_ns()


def waited_ns() -> int:
    """Returns for how long this thread has been kept waiting for a core, in ns so far.

    0 where the kernel does not count it.
    """
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read(100).split()[1])
    except OSError:
        return 0


def foreign_cpu(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Returns how many cores others kept busy between two readings of `cpu_times`."""
    wall_s = (after[1] - before[1]) / 1e9
    return (after[0] - before[0]) / os.sysconf("SC_CLK_TCK") / wall_s


def available_bytes(root: Path = Path("/")) -> int:
    """Returns the memory that this process may still take: of the host and of its control groups.

    What a group holds of files that can be dropped does not count as taken.
    """
    found = [_mem_info_bytes(root, "MemAvailable")]
    for folder in _group_folders(root, "memory"):
        for limit_name, used_name, dropped in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = _read(folder / limit_name), _read(folder / used_name)
            if limit and used and limit != "max":
                stat = dict(line.split()[:2] for line in _read(folder / "memory.stat").splitlines())
                found.append(max(0, int(limit) - int(used) + int(stat.get(dropped, 0))))
    return min(found)


def available_threads(root: Path = Path("/")) -> int | None:
    """Returns how many threads more the control groups of this process allow, None = no limit."""
    found = []
    for folder in _group_folders(root, "pids"):
        limit, used = _read(folder / "pids.max"), _read(folder / "pids.current")
        if limit and used and limit != "max":
            found.append(max(0, int(limit) - int(used)))
    return min(found, default=None)


def _model(root: Path) -> str:
    for line in (root / "proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"model name", "Model", "cpu model"}:
            return value.strip()
    return "unknown"


def _mem_info_bytes(root: Path, key: str) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * KIB
    raise OSError(f"{root / 'proc/meminfo'} has no {key}")


def _group_folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control group and all above it, version 2 and 1.

    In a container the path of /proc/self/cgroup may not be mounted; what is mounted counts.
    """
    base = root / "sys/fs/cgroup"
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            top = base
        elif controller in controllers.split(","):
            top = base / controllers
            top = top if top.is_dir() else base / controller
        else:
            continue
        folder = top / path.lstrip("/")
        while True:
            if folder.is_dir():
                yield folder
            if folder in {top, base}:
                break
            folder = folder.parent


def _memory_limits(root: Path) -> Iterator[tuple[int, str]]:
    for folder in _group_folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name)
            if text and text != "max":
                yield int(text), str(folder / name)


def _quotas(root: Path) -> Iterator[float]:
    for folder in _group_folders(root, "cpu"):
        text = _read(folder / "cpu.max")
        if text and not text.startswith("max"):
            quota, period = text.split()
            yield int(quota) / int(period)
        quota_us = _read(folder / "cpu.cfs_quota_us")
        period_us = _read(folder / "cpu.cfs_period_us")
        if quota_us and period_us and int(quota_us) > 0:
            yield int(quota_us) / int(period_us)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
