"""Which process serves which devices, in what environment: one rule per back end.

A core group, a whole GPU, an MPS client and a MIG instance have a process each; all green contexts
of one GPU share a process. Environments are complete before the process starts, because CUDA reads
them once. Not yet run on hardware, but for core groups.

Source: NVIDIA MPS documentation (client environment); NVIDIA MIG User Guide (CUDA_VISIBLE_DEVICES
with MIG UUIDs); CUDA driver API, green contexts.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from doppler.core.cluster import Cluster, Device
from doppler.core.errors import ClusterError
from executor.launch.gpus import Gpu, GpuInventory, host_gpus
from executor.workers.green_context import plan_split
from executor.workers.mig import assign_instances, instance_environment
from executor.workers.mps import (
    MpsControl,
    MpsShare,
    chunk_sms,
    chunks_for,
    client_environment,
)
from executor.workers.share import GPU_KINDS, GREEN_CONTEXT, MIG, MPS, WHOLE, GpuShare

MPS_PIPE_VARIABLE, MPS_PIPE_DEFAULT = "CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One process.

    Attributes:
        devices: Positions of the devices that it serves.
        shares: What each of them owns of a GPU; empty for a core group.
        mps: What it owns as an MPS client, else None.
    """

    devices: tuple[int, ...]
    shares: tuple[GpuShare, ...] = ()
    mps: MpsShare | None = None

    def share_of(self, device: int) -> GpuShare | None:
        """Returns what a device of this seat owns of a GPU, None for a core group."""
        return self.shares[self.devices.index(device)] if self.shares else None

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment of the process; a core group sees no GPU."""
        if self.mps is not None:
            return client_environment(environment, self.mps)
        visible = self.shares[0].visible if self.shares else ""
        return instance_environment(environment, visible)


def plan_seats(
    cluster: Cluster,
    inventory: GpuInventory,
    environment: Mapping[str, str],
    partitions: Mapping[str, str] | None = None,
) -> tuple[Seat, ...]:
    """Returns the processes of a cluster, in the order of their first devices.

    Args:
        cluster: Devices of this host.
        inventory: GPUs of this host.
        environment: Where the MPS daemon's pipe directory is looked up.
        partitions: Device name -> static MPS partition; None = shares by percentage.

    Raises:
        ClusterError: If a device's kind is unknown, or its GPU is not here or not cut that way.
    """
    by_gpu: dict[str, list[int]] = {}
    seats: list[Seat] = []
    for position, device in enumerate(cluster.devices):
        if device.kind == "cpu":
            seats.append(Seat(devices=(position,)))
        elif device.kind in GPU_KINDS:
            by_gpu.setdefault(device.parent, []).append(position)
        else:
            raise ClusterError(
                f"a worker runs a device of kind cpu, {', '.join(GPU_KINDS)}, and device "
                f"{device.name!r} of cluster {cluster.name!r} is {device.kind!r}"
            )
    pipe = environment.get(MPS_PIPE_VARIABLE, MPS_PIPE_DEFAULT)
    for name, positions in by_gpu.items():
        first = cluster.devices[positions[0]]
        gpu = inventory.find(name, f"device {first.name!r} of cluster {cluster.name!r}")
        devices = {position: cluster.devices[position] for position in positions}
        seats += _gpu_seats(gpu, devices, pipe, partitions)
    return tuple(sorted(seats, key=lambda seat: seat.devices[0]))


def _gpu_seats(
    gpu: Gpu, devices: Mapping[int, Device], pipe: str, partitions: Mapping[str, str] | None
) -> list[Seat]:
    kind = _common_kind(gpu, list(devices.values()))
    if kind == MIG:
        return _mig_seats(gpu, devices)
    if kind == GREEN_CONTEXT:
        return [_green_seat(gpu, devices)]
    if kind == MPS:
        return [
            _mps_seat(gpu, position, device, pipe, partitions)
            for position, device in devices.items()
        ]
    return [
        Seat(devices=(position,), shares=(_share(gpu, device, gpu.uuid),))
        for position, device in devices.items()
    ]


def _common_kind(gpu: Gpu, devices: Sequence[Device]) -> str:
    kinds = sorted({device.kind for device in devices})
    if len(kinds) > 1:
        raise ClusterError(f"a GPU is cut in one way, and {gpu.name!r} is cut by {kinds}")
    if kinds[0] == WHOLE and len(devices) > 1:
        names = [device.name for device in devices]
        raise ClusterError(f"a whole GPU is one device, and {gpu.name!r} is that of {names}")
    if gpu.has_mig != (kinds[0] == MIG):
        state = "on" if gpu.has_mig else f"off ({gpu.mig_text})"
        raise ClusterError(
            f"a GPU with MIG on is cut by mig and nothing else is, and {gpu.name!r} with MIG "
            f"{state} is cut by {kinds[0]!r}"
        )
    return kinds[0]


def _share(gpu: Gpu, device: Device, visible: str) -> GpuShare:
    return GpuShare(
        device=device.name,
        kind=device.kind,
        gpu=gpu.name,
        visible=visible,
        units=own_units(gpu, device),
        total_units=gpu.num_units,
        memory_bytes=device.memory_bytes,
    )


def own_units(gpu: Gpu, device: Device) -> int:
    """Returns the multiprocessors that a device owns of its GPU."""
    return round(device.share * gpu.num_units)


def _mig_seats(gpu: Gpu, devices: Mapping[int, Device]) -> list[Seat]:
    wanted = [(d.name, own_units(gpu, d), d.memory_bytes) for d in devices.values()]
    assigned = assign_instances(wanted, gpu.instances, gpu.name)
    return [
        Seat(devices=(position,), shares=(_share(gpu, device, assigned[device.name].uuid),))
        for position, device in devices.items()
    ]


def _green_seat(gpu: Gpu, devices: Mapping[int, Device]) -> Seat:
    asked = [own_units(gpu, device) for device in devices.values()]
    granted = plan_split(asked, gpu.num_units, gpu.capability)
    for device, want, get in zip(devices.values(), asked, granted, strict=True):
        if want != get:
            raise ClusterError(
                f"a green context has the SMs that the driver grants, and for device "
                f"{device.name!r} of {gpu.name!r} ({want}) that is {get}: cut it so"
            )
    total = sum(device.memory_bytes for device in devices.values())
    shares = tuple(
        replace(_share(gpu, device, gpu.uuid), split=granted, position=index, process_bytes=total)
        for index, device in enumerate(devices.values())
    )
    return Seat(devices=tuple(devices), shares=shares)


def _mps_seat(
    gpu: Gpu, position: int, device: Device, pipe: str, partitions: Mapping[str, str] | None
) -> Seat:
    units = own_units(gpu, device)
    partition = None if partitions is None else partitions[device.name]
    mps = MpsShare(
        gpu_uuid=gpu.uuid,
        pipe_directory=pipe,
        percentage=None if partition else 100 * units / gpu.num_units,
        partition=partition,
        memory_bytes=device.memory_bytes,
    )
    share = replace(_share(gpu, device, gpu.uuid), pipe_directory=pipe)
    return Seat(devices=(position,), shares=(share,), mps=mps)


class Seating:
    """The processes of a cluster on this host, with all that must stand before they start.

    Static MPS partitions are made here and removed by `release`; nothing else of a GPU is changed.

    Attributes:
        seats: The processes.
        inventory: GPUs of this host; not looked at for core groups.

    Raises:
        ClusterError: As `plan_seats`; or if a partition has no whole number of chunks.
        ExecutionError: If the MPS daemon does not answer, or has no static partitions.
    """

    def __init__(
        self,
        cluster: Cluster,
        static_mps: bool = False,
        inventory: GpuInventory | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        has_gpu = any(device.kind in GPU_KINDS for device in cluster.devices)
        self.inventory = inventory or (host_gpus() if has_gpu else GpuInventory())
        self._partitions: dict[str, str] = {}
        clients = [device for device in cluster.devices if device.kind == MPS]
        self._control = mps_control(environment)
        # Kinds and GPUs are checked before a partition is made.
        self.seats = plan_seats(cluster, self.inventory, environment)
        if clients:
            self._control.servers()
        if clients and static_mps:
            try:
                for device in clients:
                    self._partitions[device.name] = self._partition(device)
            except BaseException:
                self.release()
                raise
            self.seats = plan_seats(cluster, self.inventory, environment, self._partitions)

    def release(self) -> None:
        """Removes what was made; the processes have ended."""
        while self._partitions:
            self._control.remove_partition(self._partitions.popitem()[1])

    def _partition(self, device: Device) -> str:
        gpu = self.inventory.find(device.parent, f"device {device.name!r}")
        units, size = own_units(gpu, device), chunk_sms(gpu.capability)
        chunks = chunks_for(units, gpu.capability)
        if chunks * size != units:
            raise ClusterError(
                f"a static MPS partition of {gpu.name!r} has a multiple of {size} SMs, and device "
                f"{device.name!r} owns {units}"
            )
        return self._control.add_partition(gpu.uuid, chunks)


def mps_control(environment: Mapping[str, str]) -> MpsControl:
    """Returns the way to the daemon that an environment names."""
    return MpsControl(environment.get(MPS_PIPE_VARIABLE, MPS_PIPE_DEFAULT))
