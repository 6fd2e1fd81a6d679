"""The specification of the simulator: SimPy drives one `Dispatcher` per device, in rounds.

A round at time t takes every completion at t, then lets all devices dispatch, then starts
transfers. What takes no time completes in the next round at the same t. `compiled.py` does the
same with arrays; this file is the one to read.
"""

from collections.abc import Generator, Sequence

import simpy

from doppler.core.costs import Costs
from doppler.core.dispatcher import (
    Command,
    CreditArrived,
    Dispatcher,
    Event,
    FreeTensor,
    OpDone,
    ReturnCredit,
    RunOp,
    SendTensor,
    TensorArrived,
    TensorSent,
)
from doppler.core.errors import ConfigError, DeadlockError
from doppler.core.plan import Plan, check_plan
from doppler.core.problem import Problem
from doppler.core.program import compile_program
from doppler.core.trace import OpSpan, Trace, TransferSpan, sort_spans
from simulator.durations import check_durations
from simulator.memory import Memory, OverLimit
from simulator.network import Network, Request

# A round starts after everything else that SimPy has for the same time (its own are 0 and 1).
ROUND_PRIORITY = 2

Process = Generator[simpy.Event, None, None]


class SimPyRuntime:
    """Runs plans in simulated time with the costs of one problem.

    Attributes:
        costs: Times of the problem's ops.
        over_limit: What happens where a device's memory does not suffice.
    """

    def __init__(self, costs: Costs, over_limit: OverLimit = OverLimit.error) -> None:
        self.costs = costs
        self.over_limit = over_limit

    def run(
        self,
        problem: Problem,
        plan: Plan,
        iterations: int,
        duration_ns: Sequence[Sequence[int]] | None = None,
    ) -> Trace:
        """Returns the trace of `iterations` iterations.

        Args:
            problem: What is run; the costs belong to it.
            plan: Placement, priorities and holds.
            iterations: At least 1.
            duration_ns: [iteration][op] in place of the costs, drawn outside.

        Raises:
            PlanError: If the plan does not fit the problem, or `duration_ns` has another shape.
            ConfigError: If `iterations` is below 1.
            CapacityError: If a device holds more than its limit (see `over_limit`).
            DeadlockError: If nothing is in flight and work is left.
        """
        check_plan(problem, plan)
        if iterations < 1:
            raise ConfigError(f"iterations is at least 1, and it is {iterations}")
        if duration_ns is not None:
            check_durations(duration_ns, iterations, problem.graph.num_ops)
        simulation = _Simulation(
            problem, self.costs, plan, iterations, duration_ns, self.over_limit
        )
        return simulation.run()


class _Simulation:
    """State of one run."""

    def __init__(
        self,
        problem: Problem,
        costs: Costs,
        plan: Plan,
        iterations: int,
        duration_ns: Sequence[Sequence[int]] | None,
        over_limit: OverLimit,
    ) -> None:
        self._over_limit = over_limit
        self._problem, self._costs, self._plan = problem, costs, plan
        self._iterations, self._duration_ns = iterations, duration_ns
        self._program = compile_program(problem, plan)
        self._links = problem.cluster.link_table
        devices = range(problem.cluster.num_devices)
        self._dispatchers = [Dispatcher(self._program, device, iterations) for device in devices]
        self._memory = Memory(problem, plan, self._program)
        self._network = Network()
        self._env = simpy.Environment()
        self._round = self._env.event()
        self._inbox: list[tuple[int, Event]] = []
        self._ready_ns: dict[tuple[int, int], int] = {}
        self._end_ns: dict[tuple[int, int], int] = {}
        self._op_spans: list[OpSpan] = []
        self._transfers: list[TransferSpan] = []

    def run(self) -> Trace:
        self._env.process(self._rounds())
        self._env.run()
        if not all(dispatcher.is_done for dispatcher in self._dispatchers):
            blocked = [line for d in self._dispatchers for line in d.blocked()]
            raise DeadlockError(
                f"nothing is in flight at {self._env.now} ns and work is left: {'; '.join(blocked)}"
            )
        op_spans, transfers = sort_spans(self._op_spans, self._transfers)
        return Trace(
            graph_digest=self._plan.graph_digest,
            cluster_digest=self._plan.cluster_digest,
            source=self._plan.source,
            runtime="simpy",
            iterations=self._iterations,
            op_spans=op_spans,
            transfers=transfers,
            peak_bytes=tuple(self._memory.peak_bytes),
        )

    def _complete(self, device: int, event: Event) -> None:
        """Puts an event into the round at the present time."""
        self._inbox.append((device, event))
        if not self._round.triggered:
            self._round._ok, self._round._value = True, None
            self._env.schedule(self._round, priority=ROUND_PRIORITY)

    def _rounds(self) -> Process:
        while True:
            inbox, self._inbox = self._inbox, []
            for device, event in inbox:
                self._dispatchers[device].post(event)
            for dispatcher in self._dispatchers:
                for ready in dispatcher.take_ready():
                    self._ready_ns[ready] = self._env.now
            started: list[tuple[int, RunOp]] = []
            for device, dispatcher in enumerate(self._dispatchers):
                for command in dispatcher.dispatch():
                    self._obey(device, command, started)
            for device, command in started:
                self._env.process(self._run_op(device, command, self._duration(device, command)))
            for request in self._network.start():
                self._memory.allocate(request.destination, request.op, (request.output,))
                self._env.process(self._bus_transfer(request))
            if self._over_limit is OverLimit.error:
                self._memory.check(self._env.now)
            self._memory.end_round()
            self._round = self._env.event()
            yield self._round

    def _obey(self, device: int, command: Command, started: list[tuple[int, RunOp]]) -> None:
        match command:
            case RunOp():
                self._memory.allocate_all(device, command.op)
                started.append((device, command))
            case SendTensor():
                self._send(device, command)
            case ReturnCredit():
                self._env.process(self._return_credit(command))
            case FreeTensor():
                self._memory.free(device, command.op, command.output)

    def _duration(self, device: int, command: RunOp) -> int:
        """Time on the device, longer for every sibling device that runs an op by now."""
        op_ns = self._costs.op_ns[command.op][device]
        if self._duration_ns is not None:
            op_ns = int(self._duration_ns[command.iteration][command.op])
        siblings = self._problem.cluster.siblings[device]
        busy = sum(1 for sibling in siblings if self._dispatchers[sibling].running)
        return op_ns * (1000 + busy * self._costs.slowdown_permille[command.op]) // 1000

    def _run_op(self, device: int, command: RunOp, duration_ns: int) -> Process:
        start_ns = self._env.now + self._costs.dispatch_ns[device]
        self._op_spans.append(
            OpSpan(
                op=command.op,
                iteration=command.iteration,
                device=device,
                stream=command.stream,
                ready_ns=self._ready_ns.pop((command.op, command.iteration)),
                start_ns=start_ns,
                end_ns=start_ns + duration_ns,
                versions=command.versions,
            )
        )
        yield self._env.timeout(start_ns + duration_ns - self._env.now)
        self._end_ns[command.op, command.iteration] = self._env.now
        self._complete(device, OpDone(command.op, command.iteration))

    def _return_credit(self, command: ReturnCredit) -> Process:
        yield self._env.timeout(0)
        self._complete(command.destination, CreditArrived(command.op, command.iteration))

    def _send(self, device: int, command: SendTensor) -> None:
        link = self._links[device, command.destination]
        if link.bytes_per_s is None:
            self._memory.allocate(command.destination, command.op, (command.output,))
            self._env.process(self._zero_copy(device, command))
        elif command.stream >= 0:
            self._memory.allocate(command.destination, command.op, (command.output,))
            self._env.process(self._stream_transfer(device, command))
        else:
            self._network.request(
                Request(
                    request_ns=self._env.now,
                    iteration=command.iteration,
                    rank=self._program.ranks[command.op],
                    output=command.output,
                    destination=command.destination,
                    op=command.op,
                    source=device,
                    buses=link.buses,
                )
            )

    def _zero_copy(self, device: int, command: SendTensor) -> Process:
        now = self._env.now
        yield self._env.timeout(0)
        self._sent(device, command)
        yield self._env.timeout(self._links[device, command.destination].latency_ns)
        self._arrived(device, command, request_ns=now, start_ns=now, release_ns=now)

    def _stream_transfer(self, device: int, command: SendTensor) -> Process:
        start_ns = self._env.now
        yield self._env.timeout(self._occupancy_ns(device, command))
        self._sent(device, command)
        yield from self._travel(
            device, command, self._end_ns[command.op, command.iteration], start_ns
        )

    def _bus_transfer(self, request: Request) -> Process:
        start_ns, command = self._env.now, request.command
        yield self._env.timeout(self._occupancy_ns(request.source, command))
        self._network.release(request)
        self._sent(request.source, command)
        yield from self._travel(request.source, command, request.request_ns, start_ns)

    def _occupancy_ns(self, device: int, command: SendTensor) -> int:
        num_bytes = self._problem.graph.ops[command.op].outputs[command.output]
        return self._links[device, command.destination].occupancy_ns(num_bytes)

    def _sent(self, device: int, command: SendTensor) -> None:
        event = TensorSent(command.op, command.output, command.iteration, command.destination)
        self._complete(device, event)

    def _travel(self, device: int, command: SendTensor, request_ns: int, start_ns: int) -> Process:
        """The latency after the release; without one the tensor is there in the same round."""
        release_ns = self._env.now
        latency_ns = self._links[device, command.destination].latency_ns
        if latency_ns > 0:
            yield self._env.timeout(latency_ns)
        self._arrived(device, command, request_ns, start_ns, release_ns)

    def _arrived(
        self, device: int, command: SendTensor, request_ns: int, start_ns: int, release_ns: int
    ) -> None:
        self._transfers.append(
            TransferSpan(
                op=command.op,
                output=command.output,
                iteration=command.iteration,
                src=device,
                dst=command.destination,
                request_ns=request_ns,
                start_ns=start_ns,
                release_ns=release_ns,
                arrival_ns=self._env.now,
            )
        )
        self._complete(
            command.destination, TensorArrived(command.op, command.output, command.iteration)
        )
