"""Checkpoints of a learner: resuming from one continues exactly as if nothing had happened.

A checkpoint holds both policies, the optimiser, the generator's state, the elites, the progress,
the configuration and the digests of graph and cluster; no pickle.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from doppler.core.errors import FormatError
from doppler.policies.ablations import new_policy
from doppler.policies.assignment import Assignment
from doppler.policies.bundle import load_tensors, read_bundle, write_bundle
from doppler.policies.dual import DualPolicy, policy_inputs
from doppler.policies.storage import config_document, parse_config
from doppler.training.config import Stage
from doppler.training.elites import Elite, EliteBuffer
from doppler.training.learner import Learner, Progress, make_optimizer

KIND = "doppler.checkpoint"
VERSION = 2
KEYS = frozenset(
    {"config", "graph_digest", "cluster_digest", "progress", "rng", "elites", "learning_rate"}
)
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save_checkpoint(learner: Learner, directory: Path) -> None:
    """Writes the learner's state; an older checkpoint there is replaced as a whole."""
    problem = learner.inputs.assignment.problem
    content = {
        "config": config_document(learner.policy.config),
        "graph_digest": problem.graph.digest,
        "cluster_digest": problem.cluster.digest,
        **learner_content(learner),
    }
    write_bundle(directory, KIND, VERSION, learner_tensors(learner), content)


def learner_content(learner: Learner) -> dict[str, Any]:
    """Returns what is no tensor of a learner's state; `restore_learner` reads it."""
    return {
        "progress": {**asdict(learner.progress), "stage": learner.progress.stage.value},
        "rng": learner.rng.bit_generator.state,
        "elites": [elite.value_ns for elite in learner.elites.elites],
        "learning_rate": learner.learning_rate,
    }


def learner_tensors(learner: Learner) -> dict[str, Tensor]:
    """Returns weights, moments of the optimiser and elites, under names of their own."""
    tensors = {f"policy.{name}": value for name, value in learner.policy.state_dict().items()}
    tensors |= optimizer_tensors(learner.policy, learner.optimizer)
    return tensors | elite_tensors(learner.elites.elites, "elites")


def elite_tensors(elites: list[Elite], prefix: str) -> dict[str, Tensor]:
    """Returns orders and devices of elites; `read_elites` reads them."""
    if not elites:
        return {}
    return {
        f"{prefix}.order": torch.from_numpy(np.stack([elite.order for elite in elites])),
        f"{prefix}.devices": torch.from_numpy(np.stack([elite.devices for elite in elites])),
    }


def load_checkpoint(
    directory: Path, assignment: Assignment, *, capacity: int, threads: int = 1
) -> Learner:
    """Returns the stored learner on the problem that it was stored for.

    Args:
        directory: Where `save_checkpoint` wrote.
        assignment: The MDP of the same problem.
        capacity: Size of the elite buffer.
        threads: Threads of the sampler.

    Raises:
        FormatError: If the checkpoint is absent, damaged or foreign, or made for another graph or
            cluster.
    """
    tensors, content = read_bundle(directory, KIND, VERSION, KEYS)
    problem = assignment.problem
    for label, found in (("graph", problem.graph.digest), ("cluster", problem.cluster.digest)):
        if content[f"{label}_digest"] != found:
            raise FormatError(
                f"checkpoint {directory} was made for {label} {content[f'{label}_digest']}, and "
                f"this one is {found}"
            )
    policy = new_policy(parse_config(content["config"], directory), seed=0)
    inputs = policy_inputs(assignment, policy.config)
    elites = EliteBuffer(assignment, capacity)
    learner = Learner(policy, inputs, elites, np.random.default_rng(), threads)
    restore_learner(learner, tensors, content, directory)
    return learner


def restore_learner(
    learner: Learner, tensors: dict[str, Tensor], content: dict[str, Any], where: Path
) -> None:
    """Gives a learner of the same problem and the same kind of policies a stored state.

    Raises:
        FormatError: If the state is damaged or of policies of another shape.
    """
    load_tensors(learner.policy, below(tensors, "policy."), where)
    elites = read_elites(tensors, "elites", content["elites"], learner.inputs.assignment, where)
    learner.elites.elites = elites
    restore_generator(learner.rng, content["rng"], where)
    learner.progress = _progress(content["progress"], where)
    learner.optimizer = make_optimizer(learner.policy)
    restore_optimizer(learner.policy, learner.optimizer, tensors, where)
    rate = content["learning_rate"]
    if not isinstance(rate, int | float) or not 0 <= rate < float("inf"):
        raise FormatError(f"learning_rate of {where} is finite and at least 0, not {rate!r}")
    learner.set_learning_rate(float(rate))


def optimizer_tensors(policy: DualPolicy, optimizer: torch.optim.Adam) -> dict[str, Tensor]:
    """Returns Adam's moments under names that `restore_optimizer` reads."""
    state = optimizer.state
    return {
        f"adam.{moment}.{name}": torch.as_tensor(state[parameter][moment])
        for name, parameter in policy.named_parameters()
        if parameter in state
        for moment in MOMENTS
    }


def restore_optimizer(
    policy: DualPolicy, optimizer: torch.optim.Adam, tensors: dict[str, Tensor], where: Path
) -> None:
    """Gives Adam the moments of a checkpoint.

    Raises:
        FormatError: If the moments of a parameter are incomplete or of another shape.
    """
    stored = below(tensors, "adam.")
    for name, parameter in policy.named_parameters():
        found = {m: stored[f"{m}.{name}"] for m in MOMENTS if f"{m}.{name}" in stored}
        if not found:
            continue
        if len(found) < len(MOMENTS) or found["exp_avg"].shape != parameter.shape:
            raise FormatError(f"the optimiser's state of {name!r} in {where} is incomplete")
        optimizer.state[parameter] = found


def below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Returns the tensors whose names start with `prefix`, without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def read_elites(
    tensors: dict[str, Tensor], prefix: str, values: Any, assignment: Assignment, where: Path
) -> list[Elite]:
    """Returns the elites of `elite_tensors` with their values.

    Raises:
        FormatError: If they are no episodes of the problem.
    """
    if not isinstance(values, list) or any(type(value) is not int for value in values):
        raise FormatError(
            f"{prefix} of checkpoint {where} are values in ns, and they are {values!r}"
        )
    if not values:
        return []
    shape = (len(values), assignment.num_ops)
    for name in (f"{prefix}.order", f"{prefix}.devices"):
        if name not in tensors or tuple(tensors[name].shape) != shape:
            raise FormatError(f"{name} of checkpoint {where} has shape {shape}, and it has not")
    orders, devices = tensors[f"{prefix}.order"].numpy(), tensors[f"{prefix}.devices"].numpy()
    if (np.sort(orders, axis=1) != np.arange(assignment.num_ops)).any():
        raise FormatError(
            f"{prefix}.order of checkpoint {where} holds every op once, and it does not"
        )
    if devices.min() < 0 or devices.max() >= assignment.num_devices:
        raise FormatError(
            f"{prefix}.devices of checkpoint {where} are 0 to {assignment.num_devices - 1}, and "
            f"they are {devices.min()} to {devices.max()}"
        )
    return [
        Elite(value_ns=int(value), order=orders[row].copy(), devices=devices[row].copy())
        for row, value in enumerate(values)
    ]


def restore_generator(rng: np.random.Generator, state: Any, where: Path) -> None:
    """Gives a generator a stored state.

    Raises:
        FormatError: If it is the state of no such generator.
    """
    try:
        rng.bit_generator.state = state
    except (TypeError, ValueError, KeyError) as error:
        raise FormatError(f"the generator's state in {where} is damaged: {error}") from error


def _progress(document: Any, where: Path) -> Progress:
    try:
        return Progress(**{**document, "stage": Stage(document["stage"])})
    except (TypeError, ValueError, KeyError) as error:
        raise FormatError(f"the progress in {where} is damaged: {error}") from error
