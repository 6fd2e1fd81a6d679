"""One instance of the suite as a value and as a file.

A file holds graph, cluster, costs and plan as our own documents, and what is claimed of them: the
plan's value, a lower bound and where it comes from. A digest over all of it tells a damaged file.
"""

import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, cast

from doppler.core.cluster import Cluster
from doppler.core.codecs.fields import decode, expect_keys, expect_object
from doppler.core.codecs.text import format_json
from doppler.core.costs import Costs
from doppler.core.errors import FormatError, nearest
from doppler.core.graph import DataflowGraph
from doppler.core.plan import Plan
from doppler.core.problem import Objective, Problem
from doppler.core.serialize import from_json, read_json, to_json, write_atomic

SCHEMA_VERSION = 1
PUBLISHED_OPTIMUM = "published"
TYPES = {
    "name": str,
    "about": str,
    "command": str,
    "objective": Objective,
    "memory_headroom": float,
    "value_ns": int,
    "bound_ns": int,
    "bound": str,
    "digest": str,
}
KEYS = (
    "type", "schema_version", *TYPES, "pins", "cluster", "graph", "costs", "plan",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteInstance:
    """A problem, its costs, and what is known of it.

    Attributes:
        name: Name of the instance and of its file.
        about: What it is and what it is good for.
        command: What made the file.
        problem, costs: The problem.
        plan: The best known plan.
        value_ns: Its objective.
        bound_ns: A proven lower bound of the objective, over all plans.
        bound: Which one: a name of `doppler.planners.bounds.Bound`, or `published`, a proven
            optimum from the literature.
    """

    name: str
    about: str
    command: str
    problem: Problem
    costs: Costs
    plan: Plan
    value_ns: int
    bound_ns: int
    bound: str

    @property
    def gap(self) -> float:
        """Value over bound, minus 1."""
        return self.value_ns / self.bound_ns - 1.0 if self.bound_ns else 0.0


def shipped_folder() -> Path:
    """Returns the folder of the files that ship with the package."""
    return Path(str(resources.files("doppler.instances"))) / "data"


def find_instances(names: list[str], folder: Path) -> list[Path]:
    """Returns the files of the named instances in a folder, all of them where none is named.

    Raises:
        FormatError: If the folder has none, or not the named one.
    """
    known = _names(folder)
    if not known:
        raise FormatError(f"{folder} holds no instance (NAME.json)")
    for name in names:
        if name not in known:
            raise FormatError(f"{folder} has no instance {name!r}; {nearest(name, known)}")
    return [folder / f"{name}.json" for name in names or known]


def save_instance(instance: SuiteInstance, path: Path) -> None:
    """Writes an instance."""
    problem = instance.problem
    document: dict[str, Any] = {
        "type": "instance",
        "schema_version": SCHEMA_VERSION,
        "name": instance.name,
        "about": instance.about,
        "command": instance.command,
        "objective": problem.objective.value,
        "memory_headroom": problem.memory_headroom,
        "value_ns": instance.value_ns,
        "bound_ns": instance.bound_ns,
        "bound": instance.bound,
        "digest": "",
        "pins": dict(problem.pins),
        "cluster": to_json(problem.cluster),
        "graph": to_json(problem.graph),
        "costs": to_json(instance.costs, problem),
        "plan": to_json(instance.plan, problem),
    }
    write_atomic(path, format_json(document | {"digest": content_digest(document)}))


def load_instance(path: Path) -> SuiteInstance:
    """Returns the instance of a file.

    Raises:
        FormatError: If the file is damaged, of another version, or its digest is not its content's.
        PlanError: If the plan does not fit its problem.
    """
    where = str(path)
    document = expect_keys(read_json(path), KEYS, where)
    if (document["type"], document["schema_version"]) != ("instance", SCHEMA_VERSION):
        raise FormatError(
            f"{where}: an instance of schema_version {SCHEMA_VERSION} is read, and the document is "
            f"{document['type']!r} of {document['schema_version']!r}"
        )
    values = {key: decode(hint, document[key], f"{where}: {key}") for key, hint in TYPES.items()}
    if content_digest(document) != values["digest"]:
        raise FormatError(
            f"{where}: digest is that of the content ({content_digest(document)}), and the "
            f"document has {values['digest']!r}"
        )
    problem = Problem(
        graph=cast(DataflowGraph, from_json(document["graph"], "graph", where=where)),
        cluster=cast(Cluster, from_json(document["cluster"], "cluster", where=where)),
        pins={
            op: decode(str, device, f"{where}: pins.{op}")
            for op, device in expect_object(document["pins"], f"{where}: pins").items()
        },
        memory_headroom=values["memory_headroom"],
        objective=values["objective"],
    )
    return SuiteInstance(
        name=values["name"],
        about=values["about"],
        command=values["command"],
        problem=problem,
        costs=cast(Costs, from_json(document["costs"], "costs", problem, where)),
        plan=cast(Plan, from_json(document["plan"], "plan", problem, where)),
        value_ns=values["value_ns"],
        bound_ns=values["bound_ns"],
        bound=values["bound"],
    )


def content_digest(document: Any) -> str:
    """Returns the hash of a document without its digest; spacing does not matter."""
    content = {key: value for key, value in document.items() if key != "digest"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob("*.json")))
