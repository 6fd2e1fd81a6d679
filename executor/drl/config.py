"""What a PPO job is: one frozen record that builds the same job in every process."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum

from doppler.core.errors import ConfigError, nearest
from doppler.core.job_mode import JobMode
from executor.drl.importance import Importance
from executor.drl.ppo import LossSettings

MAX_STALENESS = 64

Setting = int | float | bool | str | tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOJobConfig:
    """A PPO job: environments, network, algorithm, and how it is cut into shards.

    Two configs that differ only in `fused`, `chunk`, `num_trainers`, `num_segments`, `all_reduce`
    or `trainer_groups` train the same policy (to rounding); every other field changes the result.

    Attributes:
        environment: A name of `environments.TASKS`, `gym:<id>`, `isaacgym:<task>` (with
            `env_python`), or empty where `custom_path` gives it.
        num_shards: K, environment shards; each is a group of the graph.
        envs_per_shard: n, copies per shard.
        horizon: H, control steps per iteration.
        chunk: Control steps per `rollout` op; divides `horizon`.
        fused: Whether environment and agent are one op per chunk.
        mode: How weights reach the environments.
        staleness: Asynchronous mode: versions that the weights which act may be behind those that
            are trained; at least 1 there, 0 in the other modes. It bounds the age of experience,
            not how far the policies differ: see `importance`.
        independent_trainers: Asynchronous mode: every trainer applies its gradients to the shared
            weights as they come, and waits for no other (A3C); it has the shards k with
            k mod `num_trainers` = m, and minibatches of their rows. Runs cannot be repeated bit for
            bit, because the order of updates is that of their arrival.
        importance: Asynchronous mode: how experience of older weights is weighed. Without it (none)
            PPO's ratio is to the policy that acted, and its clip bounds only ratios above 1 of
            positive advantages and ratios below 1 of negative ones.
        rho_bar: Bound of the weight of a step, where `importance` is not none.
        c_bar: V-trace: bound of the weights that carry corrections back in time.
        num_trainers: M, parts of a minibatch whose gradients are computed apart.
        num_segments: S, segments of the parameter vector that are reduced and updated apart.
        all_reduce: How the parts of a gradient are added: `direct` (one op per segment adds them
            all), or a composition whose additions and copies are ops of their own (`ring`, `tree`,
            `hybrid(1)`).
        trainer_groups: Groups of trainers that compositions tell apart, those of one GPU or host;
            trainer m is in group m mod `trainer_groups`.
        epochs: Passes over the rows of an iteration.
        minibatches: Gradient steps per pass; divides the rows.
        hidden: Widths of the network's shared trunk.
        init_log_std: First log standard deviation of the actions.
        learning_rate: Adam's step size.
        gamma: Discount per control step.
        lam: Lambda of generalised advantage estimation.
        clip: Half-width of PPO's clip.
        value_coef: Weight of the value loss.
        entropy_coef: Weight of the entropy bonus.
        clip_value: Whether the value loss is clipped, too.
        max_grad_norm: Bound of the gradient's norm.
        reward_scale: Factor on rewards before training; reported returns are unscaled.
        seed: Decides every random number.
        custom_path: Python file of a job of the user's own, or empty.
        custom_name: Class in `custom_path`, or empty.
        env_python: Interpreter that runs the environments, or empty for this one.
    """

    environment: str = "ant"
    num_shards: int = 6
    envs_per_shard: int = 32
    horizon: int = 16
    chunk: int = 8
    fused: bool = True
    mode: JobMode = JobMode.synchronous
    staleness: int = 0
    independent_trainers: bool = False
    importance: Importance = Importance.none
    rho_bar: float = 1.0
    c_bar: float = 1.0
    num_trainers: int = 4
    num_segments: int = 2
    all_reduce: str = "direct"
    trainer_groups: int = 1
    epochs: int = 4
    minibatches: int = 2
    hidden: tuple[int, ...] = (256, 128, 64)
    init_log_std: float = -1.0
    learning_rate: float = 1e-3
    gamma: float = 0.98
    lam: float = 0.95
    clip: float = 0.2
    value_coef: float = 1.0
    entropy_coef: float = 0.0
    clip_value: bool = True
    max_grad_norm: float = 1.0
    reward_scale: float = 0.1
    seed: int = 0
    custom_path: str = ""
    custom_name: str = ""
    env_python: str = ""

    def __post_init__(self) -> None:
        _check_types(self)
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, but is {getattr(self, name)}")
        for name, (low, high) in _RANGES.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(
                    f"{name} must lie in [{low}, {high}], but is {getattr(self, name)}"
                )
        for name in ("learning_rate", "max_grad_norm", "reward_scale"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, but is {getattr(self, name)}")
        if not self.hidden or min(self.hidden) < 1:
            raise ConfigError(f"hidden must be one or more positive widths, but is {self.hidden}")
        if self.horizon % self.chunk:
            raise ConfigError(f"chunk must divide horizon {self.horizon}, but is {self.chunk}")
        self._check_rows()
        self._check_mode()
        if bool(self.custom_path) != bool(self.custom_name):
            raise ConfigError(
                f"custom_path and custom_name go together, but are {self.custom_path!r} and "
                f"{self.custom_name!r}"
            )
        if bool(self.environment) == bool(self.custom_path):
            raise ConfigError(
                f"exactly one of environment and custom_path names the environment, but they are "
                f"{self.environment!r} and {self.custom_path!r}"
            )

    def _check_rows(self) -> None:
        if self.rows % self.minibatches:
            raise ConfigError(
                f"minibatches must divide the {self.rows} rows of an iteration "
                f"(num_shards x envs_per_shard x horizon), but is {self.minibatches}"
            )
        if self.num_trainers > self.minibatch_rows:
            raise ConfigError(
                f"num_trainers must be at most the {self.minibatch_rows} rows of a minibatch, "
                f"but is {self.num_trainers}"
            )
        if self.trainer_groups > self.num_trainers:
            raise ConfigError(
                f"trainer_groups must be at most num_trainers ({self.num_trainers}), but is "
                f"{self.trainer_groups}"
            )

    def _check_mode(self) -> None:
        low, high = (1, MAX_STALENESS) if self.mode is JobMode.asynchronous else (0, 0)
        if not low <= self.staleness <= high:
            raise ConfigError(
                f"staleness must lie in [{low}, {high}] in {self.mode.value} mode, but is "
                f"{self.staleness}"
            )
        if self.exact_advantages and self.mode is not JobMode.asynchronous:
            raise ConfigError(
                f"importance must be none in {self.mode.value} mode, where no experience is of "
                f"older weights, but is {self.importance.value}"
            )
        if self.independent_trainers:
            self._check_independent()
        if self.importance is Importance.vtrace and self.c_bar > self.rho_bar:
            raise ConfigError(
                f"c_bar must be at most rho_bar {self.rho_bar:g}, but is {self.c_bar:g}"
            )

    def _check_independent(self) -> None:
        if self.mode is not JobMode.asynchronous or not self.has_direct_sums:
            raise ConfigError(
                "independent_trainers needs asynchronous mode and all_reduce direct, but they are "
                f"{self.mode.value} and {self.all_reduce}"
            )
        if self.num_shards % self.num_trainers:
            raise ConfigError(
                f"num_shards must be a multiple of num_trainers ({self.num_trainers}) where "
                f"trainers are independent, but is {self.num_shards}"
            )
        rows = self.rows // self.num_trainers
        if rows % self.minibatches:
            raise ConfigError(
                f"minibatches must divide the {rows} rows of a trainer where trainers are "
                f"independent, but is {self.minibatches}"
            )

    @property
    def exact_advantages(self) -> bool:
        """Whether advantages are measured under the very weights that are trained next."""
        return self.importance is not Importance.none

    @property
    def has_direct_sums(self) -> bool:
        """Whether one op per segment adds all parts of a gradient."""
        return self.all_reduce == "direct"

    @property
    def segment_coordinate(self) -> int:
        """Where sums and optimizers have the number of their segment: `adam[e,b,j]`."""
        return 3 if self.independent_trainers else 2

    @property
    def num_envs(self) -> int:
        """Copies in all shards together."""
        return self.num_shards * self.envs_per_shard

    @property
    def rows(self) -> int:
        """Training rows per iteration."""
        return self.num_envs * self.horizon

    @property
    def minibatch_rows(self) -> int:
        """Rows per gradient step."""
        return self.rows // self.minibatches

    @property
    def num_chunks(self) -> int:
        """Chunks per iteration."""
        return self.horizon // self.chunk

    @property
    def loss(self) -> LossSettings:
        """Weights of the objective."""
        return LossSettings(
            clip=self.clip,
            value_coef=self.value_coef,
            entropy_coef=self.entropy_coef,
            clip_value=self.clip_value,
        )

    def to_dict(self) -> dict[str, object]:
        """Returns a JSON-able form."""
        words = {"mode": self.mode.value, "importance": self.importance.value}
        return asdict(self) | {"hidden": list(self.hidden)} | words

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> "PPOJobConfig":
        """Returns the config of `to_dict()`; fields left out keep their defaults.

        Raises:
            ConfigError: A key is unknown, or a value has another type or range than its field.
        """
        return cls().with_settings(values)

    def with_settings(self, settings: Mapping[str, object]) -> "PPOJobConfig":
        """Returns a copy with some fields changed.

        Raises:
            ConfigError: A key is unknown, or a value has another type or range than its field.
        """
        known = [field.name for field in fields(self)]
        changed: dict[str, object] = {}
        for name, value in settings.items():
            if name not in known:
                raise ConfigError(f"job setting {name!r} is unknown; {nearest(name, known)}")
            if name in _WORDS and isinstance(value, str):
                changed[name] = _member(name, value)
            else:
                changed[name] = tuple(value) if isinstance(value, list) else value
        return replace(self, **changed)  # type: ignore[arg-type]  # checked in __post_init__


_COUNTS = (
    "num_shards",
    "envs_per_shard",
    "horizon",
    "chunk",
    "num_trainers",
    "num_segments",
    "trainer_groups",
    "epochs",
    "minibatches",
)
_RANGES = {
    "gamma": (0.0, 1.0),
    "lam": (0.0, 1.0),
    "clip": (1e-6, 1.0),
    "value_coef": (0.0, 1e6),
    "entropy_coef": (0.0, 1e6),
    "init_log_std": (-10.0, 5.0),
    "rho_bar": (1e-6, 1e6),
    "c_bar": (1e-6, 1e6),
    "seed": (0, 2**63 - 1),
}
_WORDS: Mapping[str, type[Enum]] = {"mode": JobMode, "importance": Importance}


def _member(setting: str, word: str) -> Enum:
    words = [member.value for member in _WORDS[setting]]
    if word not in words:
        raise ConfigError(f"{setting} {word!r} is unknown; {nearest(word, words)}")
    return _WORDS[setting](word)


def _check_types(config: PPOJobConfig) -> None:
    for field in fields(config):
        value = getattr(config, field.name)
        default = field.default
        if isinstance(default, bool) or isinstance(value, bool):
            right = isinstance(default, bool) and isinstance(value, bool)
        elif isinstance(default, float):
            right = isinstance(value, int | float)
        elif isinstance(default, tuple):
            right = isinstance(value, tuple) and all(type(width) is int for width in value)
        else:
            right = isinstance(value, type(default))
        if not right:
            raise ConfigError(
                f"job setting {field.name!r} must be {_type_name(default)}, but is {value!r}"
            )


def _type_name(default: object) -> str:
    return "a list of int" if isinstance(default, tuple) else type(default).__name__
