"""Every trace of both engines obeys every rule; a trace with one fault is refused by name."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from doppler.core.cluster import Cluster, Device, Link
from doppler.core.costs import make_costs
from doppler.core.errors import TraceError
from doppler.core.graph import DataflowGraph, Edge, EdgeMode, Op
from doppler.core.plan import make_plan
from doppler.core.problem import Problem
from doppler.core.trace import OpSpan, Trace, TransferSpan
from doppler.core.validate import check_trace
from simulator.compiled import CompiledRuntime
from simulator.runtime import SimPyRuntime
from tests.strategies import Case, cases


@settings(max_examples=200, deadline=None)
@given(case=cases())
def test_traces_of_both_engines_are_valid(case: Case) -> None:
    for runtime in (SimPyRuntime(case.costs), CompiledRuntime(case.costs)):
        trace = runtime.run(case.problem, case.plan, case.iterations)
        check_trace(case.problem, case.plan, trace, max(case.costs.dispatch_ns))
