"""What a document was made for: digests of graph and cluster."""

from collections.abc import Mapping
from typing import Any

from doppler.core.codecs.fields import decode_scalar
from doppler.core.errors import PlanError
from doppler.core.problem import Problem


def check_digests(document: Mapping[str, Any], problem: Problem, what: str, where: str) -> None:
    """Checks that a plan, costs or a trace belongs to the problem at hand.

    Raises:
        FormatError: If a digest is no string.
        PlanError: If a digest is another one.
    """
    for key, label, name, digest in (
        ("graph_digest", "graph", problem.graph.name, problem.graph.digest),
        ("cluster_digest", "cluster", problem.cluster.name, problem.cluster.digest),
    ):
        found = decode_scalar(str, document[key], f"{where}: {key}")
        if found != digest:
            raise PlanError(
                f"{where}: {key} says that the {what} was made for {label} {found}, and {label} "
                f"{name!r} is {digest}"
            )
