"""Several models of op times, asked in turn; every answer says which one gave it."""

from collections.abc import Sequence
from dataclasses import dataclass

from doppler.core.cluster import Device
from doppler.core.costs import Costs, make_costs
from doppler.core.graph import Op
from doppler.core.problem import Problem
from simulator.costs.source import OpTime, OpTimeModel, UnknownTimeError


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOrigin:
    """Where the times of one op kind on one device come from.

    Attributes:
        kind: Op kind.
        device: Name of the device.
        model: Name of the model that answered.
        detail: How it came to its answers.
        num_ops: Ops that it answered for.
        min_ns, max_ns: Least and largest time among them.
    """

    kind: str
    device: str
    model: str
    detail: str
    num_ops: int
    min_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedModel:
    """Models by precedence: the first that knows the time of an op on a device gives it.

    Attributes:
        models: Most trusted first, such as measured, then roofline.
    """

    models: tuple[OpTimeModel, ...]

    def costs(self, problem: Problem) -> Costs:
        """Returns the times of every op on every device.

        Raises:
            UnknownTimeError: If no model knows one of them; says what each of them misses.
        """
        return self.explain(problem)[0]

    def explain(self, problem: Problem) -> tuple[Costs, tuple[CostOrigin, ...]]:
        """Returns the times, and where they come from per op kind, device and model.

        Raises:
            UnknownTimeError: If no model knows one of them; says what each of them misses.
        """
        devices = problem.cluster.devices
        op_ns: list[tuple[int, ...]] = []
        slowdown: list[int] = []
        answers: dict[tuple[str, str, str], list[OpTime]] = {}
        for op in problem.graph.ops:
            row: list[OpTime] = []
            for device in () if op.is_input else devices:
                model, time = self._ask(op, device)
                answers.setdefault((op.kind, device.name, model), []).append(time)
                row.append(time)
            op_ns.append(tuple(time.time_ns for time in row) or (0,) * len(devices))
            slowdown.append(max((time.slowdown_permille for time in row), default=0))
        dispatch = tuple(self._dispatch(device) for device in devices)
        origins = tuple(
            CostOrigin(
                kind=kind,
                device=device,
                model=model,
                detail=", ".join(sorted({time.detail for time in times})),
                num_ops=len(times),
                min_ns=min(time.time_ns for time in times),
                max_ns=max(time.time_ns for time in times),
            )
            for (kind, device, model), times in answers.items()
        )
        return make_costs(problem, tuple(op_ns), tuple(slowdown), dispatch), origins

    def _ask(self, op: Op, device: Device) -> tuple[str, OpTime]:
        reasons: list[str] = []
        for model in self.models:
            try:
                return model.name, model.op_time(op, device)
            except UnknownTimeError as error:
                reasons.append(f"{model.name}: {error}")
        raise UnknownTimeError(
            f"no model knows the time of op {op.name!r} on {device.name!r} ({'; '.join(reasons)})"
        )

    def _dispatch(self, device: Device) -> int:
        for model in self.models:
            known = model.dispatch_of(device)
            if known is not None:
                return known
        return 0


def model_shares(origins: Sequence[CostOrigin]) -> dict[str, float]:
    """Returns the part of all (op, device) times that each model gave."""
    total = sum(origin.num_ops for origin in origins)
    shares: dict[str, float] = {}
    for origin in origins:
        shares[origin.model] = shares.get(origin.model, 0.0) + origin.num_ops / total
    return shares
