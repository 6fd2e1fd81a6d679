"""Resource-performance model: which mapping template moves most iterations through a GPU.

A copy of a job occupies R of the dominant resource and takes T + COM per iteration, so a GPU with
R_all of it yields (R_all / R) / (T + COM).

Source: GMI-DRL, eq. 1-3 and tables 1-3. Ours are: sums instead of time-weighted means where shares
are reserved, an agent that is not shared in EA-T, a latency per message, and the rows that the
paper does not print (E-AT, full splits).
"""

import enum
from dataclasses import dataclass

from doppler.coordinator.reading import Reading
from doppler.core.cluster import NS_PER_S
from doppler.core.errors import ConfigError
from doppler.core.job_mode import JobMode


class Template(enum.Enum):
    """Who shares a GMI: E environment, A agent, T trainer.

    `dp_only`: E+A+T together. `dp_mp`: each alone, whole chains replicated. `mp_dp`: each alone,
    several E share one A (serving). `e_at`: E alone, A+T shared. `ea_t`: E+A, T shared.
    """

    dp_only = "dp_only"
    dp_mp = "dp_mp"
    mp_dp = "mp_dp"
    e_at = "e_at"
    ea_t = "ea_t"


SERVING_TEMPLATES = (Template.dp_only, Template.dp_mp, Template.mp_dp)
TRAINING_TEMPLATES = (Template.dp_only, Template.dp_mp, Template.e_at, Template.ea_t)


class Occupancy(enum.Enum):
    """Whether what one role leaves idle serves others.

    `time_weighted`: it does (MPS without caps). `reserved`: it does not (static partitions, MIG,
    core groups).
    """

    time_weighted = "time_weighted"
    reserved = "reserved"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleProfile:
    """What the roles of one copy need, measured alone on a whole GPU.

    Attributes:
        r_sim, r_agent, r_train: Dominant resource, in any one unit.
        t_sim_ns, t_agent_ns, t_train_ns: Time per iteration; for serving an iteration is one step.
        state_bytes, action_bytes, reward_bytes: Of all environments of the copy, per step.
        policy_bytes: Weights of the policy; a gradient is as large.
        horizon: Steps before a training step.
        share_agent, share_train: Size of an agent (trainer) per simulator where several share one.
    """

    r_sim: float
    r_agent: float
    r_train: float
    t_sim_ns: int
    t_agent_ns: int
    t_train_ns: int = 0
    state_bytes: int = 0
    action_bytes: int = 0
    reward_bytes: int = 0
    policy_bytes: int = 0
    horizon: int = 32
    share_agent: float = 0.2
    share_train: float = 0.3


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one copy exchanges with other GMIs per iteration."""

    messages: int
    num_bytes: int

    def time_ns(self, latency_ns: int, bytes_per_s: int | None) -> int:
        """Returns latency per message plus bytes over bandwidth; None = bytes stay in place."""
        copying_ns = 0 if bytes_per_s is None else -(-self.num_bytes * NS_PER_S // bytes_per_s)
        return self.messages * latency_ns + copying_ns


@dataclass(frozen=True, slots=True)
class Prediction:
    """A template with its predicted rate.

    Attributes:
        template: The template.
        resource: R of one copy.
        iteration_ns: T + COM.
        iterations_per_s: Of all copies that fit one GPU.
    """

    template: Template
    resource: float
    iteration_ns: int
    iterations_per_s: float


class Dominant(enum.Enum):
    """The resource that limits how many copies fit: multiprocessors (cores), or memory."""

    compute = "compute"
    memory = "memory"


def dominant(compute_share: float, memory_share: float) -> Dominant:
    """Returns the resource of which a copy takes the larger share (eq. 1)."""
    return Dominant.compute if compute_share >= memory_share else Dominant.memory


def templates_for(mode: JobMode) -> tuple[Template, ...]:
    """Returns the templates of serving, or of training (synchronous and asynchronous)."""
    return SERVING_TEMPLATES if mode is JobMode.serving else TRAINING_TEMPLATES


def copy_resource(
    template: Template,
    profile: RoleProfile,
    mode: JobMode,
    occupancy: Occupancy = Occupancy.time_weighted,
    reading: Reading = Reading.corrected,
) -> float:
    """Returns R, the dominant resource of one copy (tables 2 and 3).

    Args:
        template: The template.
        profile: What the roles need.
        mode: Serving has no trainer.
        occupancy: Mean over time, or sum of reservations.
        reading: As printed, EA-T has its agent shared.

    Raises:
        ConfigError: If the template does not exist in the mode, or no role takes time.
    """
    _check(template, mode)
    shares_agent = template in (Template.mp_dp, Template.e_at)
    shares_agent = shares_agent or (template is Template.ea_t and reading is Reading.printed)
    agent = profile.r_agent * (profile.share_agent if shares_agent else 1.0)
    shares_train = template in (Template.e_at, Template.ea_t)
    train = profile.r_train * (profile.share_train if shares_train else 1.0)
    roles = [(profile.t_sim_ns, profile.r_sim), (profile.t_agent_ns, agent)]
    if mode is not JobMode.serving:
        roles.append((profile.t_train_ns, train))
    if template is Template.dp_only:
        return max(resource for _, resource in roles)
    if occupancy is Occupancy.time_weighted:
        total_ns = sum(time_ns for time_ns, _ in roles)
        if total_ns <= 0:
            raise ConfigError(f"an iteration takes time, and the roles of {template.value!r} none")
        return sum(time_ns * resource for time_ns, resource in roles) / total_ns
    if template is Template.ea_t:
        return max(profile.r_sim, profile.r_agent) + train
    return sum(resource for _, resource in roles)


def traffic(template: Template, profile: RoleProfile, mode: JobMode, num_gmis: int = 1) -> Traffic:
    """Returns what one copy exchanges per iteration (tables 2 and 3, column COM).

    A split between environment and agent costs three messages per step (state, action, experience);
    one between agent and trainer two per iteration (experience of the whole horizon, weights).
    The gradient all-reduce over n members moves 2 (n - 1) / n of the policy in 2 (n - 1) messages.

    Raises:
        ConfigError: If the template does not exist in the mode, or `num_gmis` is below 1.
    """
    _check(template, mode)
    if num_gmis < 1:
        raise ConfigError(f"an all-reduce has at least one GMI, and it has {num_gmis}")
    p = profile
    step = p.state_bytes + p.action_bytes + p.reward_bytes
    if mode is JobMode.serving:
        if template is Template.dp_only:
            return Traffic(0, 0)
        return Traffic(3, p.state_bytes + step)
    messages = 2 * (num_gmis - 1)
    num_bytes = 2 * (num_gmis - 1) * p.policy_bytes // num_gmis
    if template in (Template.e_at, Template.dp_mp):
        messages += 3 * p.horizon
        num_bytes += p.horizon * (p.state_bytes + step)
    if template in (Template.ea_t, Template.dp_mp):
        messages += 2
        num_bytes += p.horizon * step + p.policy_bytes
    return Traffic(messages, num_bytes)


def predict(
    template: Template,
    profile: RoleProfile,
    mode: JobMode,
    *,
    resource_per_gpu: float,
    latency_ns: int,
    bytes_per_s: int | None,
    num_gmis: int = 1,
    occupancy: Occupancy = Occupancy.time_weighted,
    reading: Reading = Reading.corrected,
) -> Prediction:
    """Returns what one GPU yields under a template (eq. 2 and 3).

    Raises:
        ConfigError: If the template does not exist in the mode, or a copy takes nothing.
    """
    resource = copy_resource(template, profile, mode, occupancy, reading)
    compute_ns = (
        profile.t_sim_ns
        + profile.t_agent_ns
        + (0 if mode is JobMode.serving else profile.t_train_ns)
    )
    com = traffic(template, profile, mode, num_gmis)
    iteration_ns = compute_ns + com.time_ns(latency_ns, bytes_per_s)
    if resource <= 0.0 or iteration_ns <= 0:
        raise ConfigError(
            f"a copy of {template.value!r} takes time and a part of the GPU, and it takes "
            f"{iteration_ns} ns and {resource}"
        )
    rate = resource_per_gpu / resource * NS_PER_S / iteration_ns
    return Prediction(template, resource, iteration_ns, rate)


def rank(predictions: list[Prediction]) -> list[Prediction]:
    """Returns predictions by falling rate; the smaller resource first among equals."""
    return sorted(predictions, key=lambda p: (-p.iterations_per_s, p.resource))


def _check(template: Template, mode: JobMode) -> None:
    valid = templates_for(mode)
    if template not in valid:
        kind = "serving" if mode is JobMode.serving else "training"
        raise ConfigError(
            f"templates of {kind} are {', '.join(t.value for t in valid)}, and "
            f"{template.value!r} is asked"
        )
