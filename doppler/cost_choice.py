"""Which times a command on files plans with, and where each of them comes from."""

from dataclasses import dataclass
from pathlib import Path

from doppler.calibration import load_calibration
from doppler.core.costs import Costs
from doppler.core.errors import ConfigError
from doppler.core.problem import Objective, Problem
from doppler.core.serialize import load_costs, read_json
from doppler.graphs.imported import ImportedGraph
from simulator.calibration.noise import lognormal_noise
from simulator.costs.composed import ComposedModel, CostOrigin
from simulator.costs.roofline import RooflineModel
from simulator.noise import LognormalNoise

COST_FILE = "cost file"
GRAPH_FILE = "graph file"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostChoice:
    """What a user gave, by precedence.

    Attributes:
        path: Cost file, or cost table of a result folder; None = none given.
        fallback: Ops that the cost table does not know take the roofline's times.
        imported: The graph as it was read; its times count where no cost file is given.
        roofline: What is left.
    """

    path: str | None
    fallback: bool
    imported: ImportedGraph
    roofline: RooflineModel

    @property
    def is_given(self) -> bool:
        """True if a file gives the times, so that they do not follow from the cluster's rates."""
        return self.path is not None or self._has_graph_times

    @property
    def _has_graph_times(self) -> bool:
        return self.imported.op_ns is not None or self.imported.needs_costs

    def costs(self, problem: Problem) -> Costs:
        """Returns the times of every op on every device.

        Raises:
            ConfigError: If a fallback is asked for and there is no cost table.
            DopplerError: If a file does not fit the problem, or a time is unknown.
        """
        fixed = self._fixed(problem)
        if fixed is not None:
            return fixed[0]
        return self.roofline.costs(problem) if self.path is None else self._model().costs(problem)

    def noise(self, sigma: float, objective: Objective) -> LognormalNoise:
        """Returns the spread of op times: `sigma`, or for p95 as measured where that is 0.

        Raises:
            ConfigError: If p95 is asked for, `sigma` is 0, and nothing was measured.
        """
        if sigma > 0.0 or objective is not Objective.p95:
            return LognormalNoise(sigma=sigma)
        if self.path is not None and _is_table(self.path):
            measured = load_calibration(Path(self.path)).noise
            if measured:
                return lognormal_noise(measured)
        raise ConfigError(
            f"objective=p95 needs the spread of op times, and costs={self.path} has none: set "
            "noise=0.1, or measure a cost table with doppler calibrate"
        )

    def origins(self, problem: Problem) -> tuple[CostOrigin, ...]:
        """Returns where the times come from per op kind and device; errors as in `costs`."""
        fixed = self._fixed(problem)
        if fixed is None:
            return self._model().explain(problem)[1]
        costs, name = fixed
        times: dict[tuple[str, str], list[int]] = {}
        for op, row in zip(problem.graph.ops, costs.op_ns, strict=True):
            for device, time_ns in zip(problem.cluster.devices, row, strict=True):
                if not op.is_input:
                    times.setdefault((op.kind, device.name), []).append(time_ns)
        return tuple(
            CostOrigin(
                kind=kind,
                device=device,
                model=name,
                detail="as given",
                num_ops=len(values),
                min_ns=min(values),
                max_ns=max(values),
            )
            for (kind, device), values in times.items()
        )

    def _fixed(self, problem: Problem) -> tuple[Costs, str] | None:
        """Times that stand in a file op by op, and which file; None where a model tells them."""
        is_table = self.path is not None and _is_table(self.path)
        if self.fallback and not is_table:
            raise ConfigError(
                "fallback fills what a measured cost table lacks: set costs=cost_table.json of a "
                "result folder, too"
            )
        if is_table:
            return None
        if self.path is not None:
            return load_costs(self.path, problem), COST_FILE
        if self._has_graph_times:
            return self.imported.costs(problem), GRAPH_FILE
        return None

    def _model(self) -> ComposedModel:
        if self.path is None:
            return ComposedModel(models=(self.roofline,))
        table = load_calibration(Path(self.path)).table()
        return ComposedModel(models=(table, self.roofline) if self.fallback else (table,))


def _is_table(path: str) -> bool:
    document = read_json(Path(path))
    return isinstance(document, dict) and "calibration" in document
