"""The catalogue as a Markdown page: tables with a source per number, made from the data only."""

from collections.abc import Iterable, Sequence

from simulator.hardware.catalogue import Catalogue
from simulator.hardware.entries import Figure, GpuEntry, Rate

UNCONFIRMED = "?"
DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16")
COMMAND = "doppler hardware output=docs/hardware.md"


def catalogue_page(catalogue: Catalogue) -> str:
    """Returns the page."""
    notes = _Notes(catalogue)
    gpus = list(catalogue.gpus.values())
    parts = [
        "# Hardware catalogue",
        f"Made by `{COMMAND}` from the data in `simulator/hardware/data`; edit the data, not this "
        "page.",
        "A number in brackets is its source, listed at the end. "
        f"`{UNCONFIRMED}` marks what no second public text was seen to state, or what is an "
        "estimate. Rates are dense peaks, of tensor cores where the GPU has them for the type. "
        "Memory is the nominal size in GiB; drivers report up to a few percent less. Bandwidths "
        "are per direction.",
        "## GPUs",
        _table(
            ("name", "GPU", "SMs", "GiB", "GB/s", *(f"{d} Tflop/s" for d in DTYPES)),
            (_gpu_row(gpu, notes) for gpu in gpus),
        ),
        "Launch is the fixed cost of a kernel, copies the engines that copy beside kernels. MPS "
        "cuts in chunks of so many SMs (0: no shares), a green context has at least so many SMs "
        "and a multiple of the step.",
        _table(
            (
                "name",
                "compute capability",
                "launch ns",
                "copies",
                "NVLinks",
                "MPS chunk",
                "green least",
                "green step",
            ),
            (
                (
                    f"`{gpu.name}`",
                    gpu.compute_capability,
                    *(
                        notes.cell(figure, 1)
                        for figure in (
                            gpu.launch_ns,
                            gpu.copy_engines,
                            gpu.nvlink_links,
                            gpu.mps_step,
                            gpu.green_min,
                            gpu.green_step,
                        )
                    ),
                )
                for gpu in gpus
            ),
        ),
        "## MIG profiles",
        "Multiprocessors, eighths of the memory, instances at most; an instance begins at one of "
        "the memory slices named (the driver's placement listing, not seen a second time).",
        _table(
            ("GPU", "profile", "SMs", "memory", "at most", "starts", "copies"),
            (
                (
                    f"`{gpu.name}`",
                    profile.name,
                    notes.text(str(profile.units), profile.source, profile.confirmed),
                    f"{profile.memory_slices}/8",
                    str(profile.max_count),
                    " ".join(map(str, profile.starts)),
                    str(profile.copy_engines),
                )
                for gpu in gpus
                for profile in gpu.mig
            ),
        ),
        "## Links",
        _table(
            ("name", "link", "stands for", "latency ns", "GB/s"),
            (
                (
                    f"`{link.name}`",
                    link.title,
                    f"`{link.family}`",
                    notes.cell(link.latency_ns, 1),
                    notes.cell(link.bytes_per_s, 10**9),
                )
                for link in catalogue.links.values()
            ),
        ),
        "## CPU cores",
        _table(
            ("name", "core", "GiB", "GB/s", "fp32 Tflop/s", "publish ns"),
            (
                (
                    f"`{cpu.name}`",
                    cpu.title,
                    notes.cell(cpu.memory_bytes, 1 << 30),
                    notes.cell(cpu.memory_bytes_per_s, 10**9),
                    notes.rate(cpu.flop_per_s, "fp32"),
                    notes.cell(cpu.publish_ns, 1),
                )
                for cpu in catalogue.cpus.values()
            ),
        ),
        "## Machines",
        "Every name works where a cluster file does: `doppler compare graph=g.json "
        "cluster=dgx_a100@bf16`.",
        _table(
            ("name", "machine", "GPU", "wires"),
            [
                *(
                    (
                        f"`{node.name}`",
                        notes.text(node.title, node.source, node.confirmed),
                        f"`{node.gpu}`" if node.gpu else f"{node.cores} x `{node.cpu}`",
                        ", ".join(
                            f"`{wire}`" for wire in (node.nvlink, node.pcie, node.socket) if wire
                        )
                        if node.gpu
                        else "shared memory",
                    )
                    for node in catalogue.nodes.values()
                ),
                *(
                    (
                        f"`{pod.name}`",
                        pod.title,
                        f"`{catalogue.nodes[pod.node].gpu}`",
                        f"{pod.count} x `{pod.node}` over `{pod.network}`",
                    )
                    for pod in catalogue.pods.values()
                ),
            ],
        ),
        "## Sources",
        "\n".join(
            f"{number}. {source.title}, {source.year}{f': <{source.url}>' if source.url else ''}"
            for number, source in enumerate(catalogue.sources.values(), 1)
        ),
    ]
    return "\n\n".join(parts) + "\n"


class _Notes:
    """Cells with the number of their source behind them."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._numbers = {name: number for number, name in enumerate(catalogue.sources, 1)}

    def text(self, text: str, source: str, confirmed: bool) -> str:
        """Returns a cell of some text."""
        return f"{text}{'' if confirmed else UNCONFIRMED} [{self._numbers[source]}]"

    def cell(self, figure: Figure, unit: int) -> str:
        """Returns a cell of a figure in units of `unit`."""
        return self.text(f"{figure.value / unit:.6g}", figure.source, figure.confirmed)

    def rate(self, rates: Sequence[Rate], dtype: str) -> str:
        """Returns a cell of the rate of a data type in Tflop/s, "-" if there is none."""
        rate = next((rate for rate in rates if rate.dtype == dtype), None)
        if rate is None:
            return "-"
        return self.text(f"{rate.value / 10**12:.6g}", rate.source, rate.confirmed)


def _gpu_row(gpu: GpuEntry, notes: _Notes) -> tuple[str, ...]:
    return (
        f"`{gpu.name}`",
        gpu.title,
        notes.cell(gpu.num_sms, 1),
        notes.cell(gpu.memory_bytes, 1 << 30),
        notes.cell(gpu.memory_bytes_per_s, 10**9),
        *(notes.rate(gpu.flop_per_s, dtype) for dtype in DTYPES),
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
