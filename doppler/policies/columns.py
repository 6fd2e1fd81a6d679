"""Names of the feature columns of ops, edges and devices."""

import enum

from doppler.policies.config import PolicyKind


class NodeColumn(enum.IntEnum):
    """Columns per op; the first five are the paper's, z-scored over the graph.

    Ratios are to the mean op time; logarithms are natural, of 1 + x where x may be 0. The columns
    of the graph are equal for all ops: mean transfer over mean op time, area over critical path and
    devices, mean deviation of an op's time over the devices, number of devices.
    Source: DOPPLER section 3 for the first five; the others survive a change of graph.
    """

    WORK = 0
    B_LEVEL = 1
    T_LEVEL = 2
    IN_COMM = 3
    OUT_COMM = 4
    LOG_WORK = 5
    B_LEVEL_SHARE = 6
    T_LEVEL_SHARE = 7
    LOG_IN_COMM = 8
    LOG_OUT_COMM = 9
    COMM_TO_WORK = 10
    FASTEST_RATIO = 11
    SLOWEST_RATIO = 12
    LOG_IN_DEGREE = 13
    LOG_OUT_DEGREE = 14
    LOG_GROUP_SIZE = 15
    LOG_META_SIZE = 16
    ALLOWED_SHARE = 17
    LOOP_IN = 18
    LOOP_OUT = 19
    LOOKAHEAD_SHARE = 20
    SLACK_SHARE = 21
    GRAPH_COMM_TO_WORK = 22
    GRAPH_PARALLELISM = 23
    GRAPH_SPREAD = 24
    GRAPH_DEVICES = 25


class EdgeColumn(enum.IntEnum):
    """Columns per edge; the first is the paper's, z-scored over the graph."""

    COMM = 0
    LOG_COMM = 1
    COMM_TO_WORK = 2


class DeviceColumn(enum.IntEnum):
    """Dynamic columns per device for the selected op; the first five are the paper's, z-scored.

    Times are in units of the mean op time. Gaps are to the smallest value over the devices that
    the op may use. Shares count ops. The three gaps from FINISH_GAP on are the priors of PLC, in
    units of the op's own time: earliest finish; earliest finish and the optimistic cost of what
    follows (PEFT's table); transfers that cannot be avoided any more because producers of the same
    consumers are elsewhere.
    """

    WORK = 0
    PRED_WORK = 1
    PRED_FIRST_START = 2
    PRED_LAST_END = 3
    EARLIEST_START = 4
    FINISH_GAP = 5
    LOOKAHEAD_GAP = 6
    PARTNER_GAP = 7
    LOG_FINISH_GAP = 8
    LOG_LOOKAHEAD_GAP = 9
    LOG_PARTNER_GAP = 10
    LOG_START_GAP = 11
    LOG_IDLE = 12
    WORK_GAP = 13
    LOG_OP_RATIO = 14
    PRED_SHARE = 15
    LOG_IN_COST = 16
    LOG_OUT_COST = 17
    LOOP_SHARE = 18
    SIBLING_SHARE = 19
    SIBLING_LOAD = 20
    COUSIN_SHARE = 21
    PARTNER_SHARE = 22
    NO_PREDECESSOR = 23
    PROGRESS = 24
    MEMORY_SHARE = 25
    SPAN_GAP = 26


class StaticColumn(enum.IntEnum):
    """Columns per device that do not change in an episode; the kind is one-hot from KIND on."""

    LOG_SPEED = 0
    LOG_STREAMS = 1
    LOG_LATENCY_OUT = 2
    LOG_PER_BYTE_OUT = 3
    KIND = 4


DEVICE_KINDS = ("cpu", "cuda", "green_context", "mps", "mig")
NUM_STATIC = StaticColumn.KIND + len(DEVICE_KINDS) + 1
NUM_PAPER = 5
NUM_PRIORS = 3
FIRST_GRAPH = NodeColumn.GRAPH_COMM_TO_WORK
NUM_GRAPH = len(NodeColumn) - FIRST_GRAPH


def num_node_columns(kind: PolicyKind) -> int:
    """Columns per op that the policies see."""
    return NUM_PAPER if kind is PolicyKind.paper else len(NodeColumn)


def num_edge_columns(kind: PolicyKind) -> int:
    """Columns per edge that the policies see."""
    return 1 if kind is PolicyKind.paper else len(EdgeColumn)


def num_device_columns(kind: PolicyKind) -> int:
    """Dynamic columns per device that PLC sees."""
    return NUM_PAPER if kind is PolicyKind.paper else len(DeviceColumn)
