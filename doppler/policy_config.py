"""Typed configuration of the commands that train policies for many graphs."""

from dataclasses import dataclass

from doppler.policies.config import PolicyKind
from doppler.setting import at_least, setting


@dataclass(slots=True, kw_only=True)
class PretrainConfig:
    """doppler pretrain: one policy over many generated problems."""

    output: str = setting("results/pretraining", "folder of policy, state and training record")
    policy: PolicyKind = setting(PolicyKind.improved, "which pair: improved, or the paper's")
    epochs: int = setting(110, "epochs of the whole training; schedules end where it ends")
    updates: int = setting(30, "gradient steps per epoch")
    lessons: int = setting(40, "problems per epoch")
    leave_out: list[str] = setting(
        [],
        "graph families and jobs (matmul_chain, ffnn, moe, llama, ppo) that no lesson is made of",
    )
    search_calls: int = setting(0, "plans that the search for a problem's labels may score")
    validation: int = setting(120, "problems that the best policy is chosen on")
    validate_every: int = setting(5, "epochs between two validations")
    seconds: float = setting(1e9, "stop between two epochs after that time; resume=true goes on")
    resume: bool = setting(False, "go on with the training in the output folder")
    tensorboard: bool = setting(
        False, "write TensorBoard's files beside metrics.jsonl (extra `tensorboard`)"
    )
    seed: int = setting(0, "seed of everything random")

    def __post_init__(self) -> None:
        at_least(self, 1, "epochs", "updates", "lessons", "validation", "validate_every")
        at_least(self, 0, "search_calls", "seconds")


@dataclass(slots=True, kw_only=True)
class TransferConfig:
    """doppler transfer: zero-shot, few-shot and scratch curves on new graphs and clusters."""

    cases: list[str] = setting(
        ["graph_to_graph", "p100_to_v100", "a100_to_h100"],
        "what is transferred: graph_to_graph, p100_to_v100, a100_to_h100",
    )
    policy: str | None = setting(
        None, "folder of the pair to start from; none = the pretrained one"
    )
    source_episodes: int = setting(2000, "episodes on the source")
    few_shot: int = setting(200, "episodes of few-shot on the target")
    predictions: int = setting(12000, "predictions at most that few-shot chooses a simulation by")
    scratch: int = setting(4000, "episodes of a policy from scratch on the target")
    reference: int = setting(20000, "plans of the long portfolio run that the best known is from")
    seeds: int = setting(3, "seeds per case")
    seed: int = setting(0, "first seed")
    output: str = setting("results/transfer", "folder of chart, table and metrics.jsonl")
    tensorboard: bool = setting(
        False, "write TensorBoard's files beside metrics.jsonl (extra `tensorboard`)"
    )

    def __post_init__(self) -> None:
        at_least(self, 1, "few_shot", "predictions", "scratch", "reference")
        at_least(self, 1, "seeds", "source_episodes")
