"""Errors that a user can cause or meet; each message is one sentence with rule, value and place."""

import difflib
from collections.abc import Iterable


class DopplerError(ValueError):
    """Base of every error that this project raises on purpose."""


class GraphError(DopplerError):
    """Raised when a dataflow graph breaks a rule (ids, bytes, circles, groups)."""


class ClusterError(DopplerError):
    """Raised when hardware, layout or cluster break a rule."""


class PlanError(DopplerError):
    """Raised when a plan does not fit its problem; names the op and the device."""


class FormatError(DopplerError):
    """Raised when a file or JSON document is damaged, foreign or of an unknown version."""


class ConfigError(DopplerError):
    """Raised when a setting is unknown or out of range."""


class CapacityError(DopplerError):
    """Raised when memory of a device, a host or a mount does not suffice."""


class ExecutionError(DopplerError):
    """Raised when a running job fails; names device, op and iteration."""


class WorkerDiedError(ExecutionError):
    """Raised when the process of a device ended without being asked to."""


class WorkerHungError(ExecutionError):
    """Raised when an op passed its deadline."""


class KernelError(ExecutionError):
    """Raised when the code of an op raised; carries the worker's traceback text."""


class DeadlockError(DopplerError):
    """Raised when nothing is in flight and work is left; lists blocked ops and their waits."""


class TraceError(DopplerError):
    """Raised when a trace breaks a rule of the runtime; names the rule, the op, the iteration."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Returns a sentence tail with the nearest valid name, or all of them if none is near."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}? Valid: {', '.join(names)}"
    return f"valid: {', '.join(names)}"
