"""A small scorer in pure Python on the project's dispatcher: no compilation, for tests only."""

import heapq
import itertools

from doppler.core.dispatcher import (
    CreditArrived,
    Dispatcher,
    FreeTensor,
    OpDone,
    ReturnCredit,
    RunOp,
    SendTensor,
    TensorArrived,
    TensorSent,
)
from doppler.core.plan import Plan, check_plan
from doppler.core.problem import Objective
from doppler.core.program import compile_program
from doppler.core.runtime import INFEASIBLE_NS
from doppler.core.trace import half_period

ITERATIONS = 24


class SlowScorer:
    """Scores by running the dispatchers; counts its calls and refuses illegal plans."""

    def __init__(self, problem, costs):
        self.problem = problem
        self.costs = costs
        self.num_calls = 0

    def score(self, placements_BV, priorities_BV, bounds_B=None):
        return [
            self._one(self._plan(tuple(map(int, placement)), tuple(map(int, priority))))
            for placement, priority in zip(placements_BV, priorities_BV, strict=True)
        ]

    def score_plans(self, plans):
        for plan in plans:
            check_plan(self.problem, plan)
        return [self._one(plan) for plan in plans]

    def makespan_ns(self, placement, priority):
        """First start to last end of all iterations of a period run."""
        plan = self._plan(tuple(placement), tuple(priority))
        starts, ends = _Run(self.problem, self.costs, plan, ITERATIONS).run()
        return max(ends) - min(starts)

    def _plan(self, placement, priority):
        plan = Plan(
            graph_digest=self.problem.graph.digest,
            cluster_digest=self.problem.cluster.digest,
            placement=placement,
            priority=priority,
        )
        check_plan(self.problem, plan)
        return plan

    def _one(self, plan):
        self.num_calls += 1
        is_period = self.problem.objective is not Objective.makespan
        starts, ends = _Run(self.problem, self.costs, plan, ITERATIONS if is_period else 1).run()
        if starts is None:
            return INFEASIBLE_NS
        if not is_period:
            return max(ends, default=0) - min(starts, default=0)
        period = half_period(list(itertools.accumulate(ends, max)))
        return -(-period.time_ns // period.iterations)


class _Run:
    def __init__(self, problem, costs, plan, iterations):
        self.problem, self.costs, self.plan = problem, costs, plan
        self.program = compile_program(problem, plan)
        count = problem.cluster.num_devices
        self.dispatchers = [Dispatcher(self.program, d, iterations) for d in range(count)]
        self.events, self.order = [], itertools.count()
        self.busy_buses, self.waiting = set(), []
        self.ends = [0] * iterations
        self.starts = []
        self.used, self.overflow = self._resident(), False

    def _resident(self):
        used = [0] * self.problem.cluster.num_devices
        for group in self.problem.graph.groups:
            members = self.problem.graph.group_members[group.name]
            if members:
                used[self.plan.placement[members[0]]] += group.state_bytes
        read = {
            (e.src, e.output, self.plan.placement[e.dst])
            for e in self.problem.graph.edges
            if not self.program.runs[e.src]
        }
        for op, output, device in read:
            used[device] += self.problem.graph.ops[op].outputs[output]
        return used

    def _at(self, time, device, event):
        heapq.heappush(self.events, (time, next(self.order), device, event))

    def run(self):
        now = 0
        self._round(now)
        while self.events:
            now = self.events[0][0]
            batch = []
            while self.events and self.events[0][0] == now:
                batch.append(heapq.heappop(self.events))
            for _, _, device, event in batch:
                if isinstance(event, frozenset):
                    self.busy_buses -= event
                else:
                    self.dispatchers[device].post(event)
            self._round(now)
        assert all(dispatcher.is_done for dispatcher in self.dispatchers)
        return (None, None) if self.overflow else (self.starts, self.ends)

    def _round(self, now):
        started = []
        sends = []
        for device, dispatcher in enumerate(self.dispatchers):
            for command in dispatcher.dispatch():
                if isinstance(command, RunOp):
                    started.append((device, command))
                    self._allocate(device, command.op)
                elif isinstance(command, SendTensor):
                    sends.append((now, command.iteration, device, command))
                elif isinstance(command, ReturnCredit):
                    credit = CreditArrived(command.op, command.iteration)
                    self._at(now, command.destination, credit)
                elif isinstance(command, FreeTensor):
                    size = self.problem.graph.ops[command.op].outputs[command.output]
                    self.used[device] -= size
        for device, command in started:
            siblings = self.problem.cluster.siblings[device]
            busy = sum(bool(self.dispatchers[other].running) for other in siblings)
            slow = 1000 + busy * self.costs.slowdown_permille[command.op]
            start = now + self.costs.dispatch_ns[device]
            end = start + self.costs.op_ns[command.op][device] * slow // 1000
            self.starts.append(start)
            self.ends[command.iteration] = max(self.ends[command.iteration], end)
            self._at(end, device, OpDone(command.op, command.iteration))
        self.waiting += sends
        self._start_transfers(now)

    def _start_transfers(self, now):
        left = []
        for entry in self.waiting:
            _, _, device, command = entry
            link = self.problem.cluster.link_table[device, command.destination]
            if command.stream < 0 and self.busy_buses & set(link.buses):
                left.append(entry)
                continue
            size = self.problem.graph.ops[command.op].outputs[command.output]
            release = now + link.occupancy_ns(size)
            if link.buses:
                self.busy_buses |= set(link.buses)
                self._at(release, device, frozenset(link.buses))
            key = (command.op, command.output, command.iteration)
            self.used[command.destination] += size
            self._at(release, device, TensorSent(*key, command.destination))
            self._at(release + link.latency_ns, command.destination, TensorArrived(*key))
        self.waiting = left
        self._check_memory()

    def _allocate(self, device, op):
        self.used[device] += sum(self.problem.graph.ops[op].outputs)

    def _check_memory(self):
        for device, used in enumerate(self.used):
            self.overflow |= used > self.problem.memory_limit_bytes(device)
