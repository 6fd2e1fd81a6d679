"""The command line: one word picks the command, Hydra overrides set the rest."""

import os
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, get_origin

from doppler import __version__, commands, hardware_commands
from doppler.comparison import compare
from doppler.compose import compose_config, flat_keys, job_choices
from doppler.config import (
    AnyJobConfig,
    CalibrateConfig,
    JobConfig,
    LearnConfig,
    ProbeConfig,
    ReportConfig,
    RunConfig,
)
from doppler.convert import convert
from doppler.coordinate import coordinate
from doppler.coordinate_config import CoordinateConfig
from doppler.core.errors import ConfigError, DopplerError, nearest
from doppler.experiment_run import experiment
from doppler.graph_command import graph
from doppler.graph_config import (
    CompareConfig,
    ConvertConfig,
    CostsConfig,
    ExperimentConfig,
    HardwareConfig,
    PlanConfig,
    SimulateConfig,
    VerifyConfig,
    WhatIfConfig,
)
from doppler.policy_config import PretrainConfig, TransferConfig
from doppler.pretrain import pretrain
from doppler.transfer import transfer
from doppler.verify import verify
from doppler.workload_config import WORKLOADS, WorkloadConfig

USER_ERROR = 2
INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One word of the command line.

    Attributes:
        schema: Its settings.
        run: What it does; returns the exit status, None = 0.
        about: One sentence.
        positional: Setting that a bare word stands for, or None; a list takes several words.
        examples: Lines for `--help`.
        schemas: Settings by the positional word, where each word has its own; `schema` is then
            for no word.
    """

    schema: type[Any]
    run: Callable[[Any, Sequence[str]], int | None]
    about: str
    examples: tuple[str, ...]
    positional: str | None = None
    schemas: Mapping[str, type[Any]] = field(default_factory=dict)

    def schema_for(self, words: Sequence[str]) -> type[Any]:
        """Returns the settings that go with the words of a command line.

        Raises:
            ConfigError: If each positional word has its own settings, and this one has none.
        """
        for word in words:
            key, is_set, value = word.partition("=")
            if not self.schemas or word.startswith("-") or (is_set and key != self.positional):
                continue
            name = value if is_set else word
            if name not in self.schemas:
                raise ConfigError(
                    f"{self.positional} {name!r} is unknown; {nearest(name, self.schemas)}"
                )
            return self.schemas[name]
        return self.schema


COMMANDS: dict[str, Command] = {
    "learn": Command(
        schema=LearnConfig,
        run=commands.learn,
        about="Calibrate a job, learn a placement, run it for real, compare it with baselines.",
        examples=(
            "doppler learn",
            "doppler learn job=ppo_humanoid training.sim_episodes=20000 seed=3",
            "doppler learn job=gym job.env=Hopper-v5",
            "doppler learn job=llama_block job.tokens=512 training.algorithm=ppo",
            "doppler learn job=custom job.path=my_job.py job.name=MyJob",
        ),
    ),
    "run": Command(
        schema=RunConfig,
        run=commands.run,
        about="Run a job under a stored plan, with progress, checkpoints and resume.",
        positional="plan",
        examples=(
            "doppler run results/latest/plan.json run.iterations=500",
            "doppler run results/latest run.target_reward=950 run.on_failure=replan",
        ),
    ),
    "plan": Command(
        schema=PlanConfig,
        run=commands.plan,
        about="Place one's own graph on one's own cluster with one planner.",
        examples=(
            "doppler plan graph=g.json cluster=c.json planner=heft output=plan.json",
            "doppler plan graph=g.json cluster=c.json planner=learned mode=greedy",
            "doppler plan graph=g.json cluster=c.json planner=learned mode=polish seconds=5",
        ),
    ),
    "compare": Command(
        schema=CompareConfig,
        run=compare,
        about="Run several planners on one graph at equal budget, from several seeds.",
        examples=(
            "doppler compare graph=g.json cluster=c.json budget=5000",
            "doppler compare graph=g.json cluster=c.json seeds=10 table=table.json",
        ),
    ),
    "simulate": Command(
        schema=SimulateConfig,
        run=commands.simulate,
        about="Simulate a stored plan and write its trace (Chrome/Perfetto).",
        examples=("doppler simulate graph=g.json cluster=c.json plan=plan.json output=t.json",),
    ),
    "what-if": Command(
        schema=WhatIfConfig,
        run=hardware_commands.ask_what_if,
        about="Change one number of a machine and rank the plans anew.",
        examples=(
            "doppler what-if graph=g.json cluster=dgx_a100 change=nvlink.bytes_per_s*2",
            "doppler what-if graph=g.json cluster=dgx1_v100 change=gpu.launch_ns:0 replan=false",
        ),
    ),
    "costs": Command(
        schema=CostsConfig,
        run=hardware_commands.show_costs,
        about="Show op times of a graph on a machine, and which model each comes from.",
        examples=(
            "doppler costs graph=g.json cluster=dgx_a100",
            "doppler costs graph=g.json cluster=c.json costs=cost_table.json fallback=true",
        ),
    ),
    "hardware": Command(
        schema=HardwareConfig,
        run=hardware_commands.show_hardware,
        about="List the machines that are known by name, show one, or import a topology.",
        positional="name",
        examples=(
            "doppler hardware",
            "doppler hardware dgx1_v100 output=hardware.json",
            "doppler hardware dgx_a100 topology=topo.txt output=hardware.json",
        ),
    ),
    "calibrate": Command(
        schema=CalibrateConfig,
        run=commands.calibrate,
        about="Measure a job's real components on this machine and print the cost table.",
        examples=(
            "doppler calibrate job=ppo_pendulum",
            "doppler calibrate job=ppo_ant check.enabled=true",
        ),
    ),
    "coordinate": Command(
        schema=CoordinateConfig,
        run=coordinate,
        about="Find the layout, mapping template and number of environments of a job.",
        examples=("doppler coordinate job=ppo_pendulum verify=3",),
    ),
    "probe": Command(
        schema=ProbeConfig,
        run=commands.probe,
        about="Show what this machine has, and why what is absent is absent.",
        examples=("doppler probe", "doppler probe output=hardware.json"),
    ),
    "graph": Command(
        schema=WorkloadConfig,
        schemas=WORKLOADS,
        run=graph,
        about="Build a workload (tensor graph, generated family, deep-RL job), print its counts.",
        positional="name",
        examples=(
            "doppler graph",
            "doppler graph llama_block tokens=2048 shards=8 dtype=float16 output=g.json",
            "doppler graph layered num_ops=200 num_devices=8 ccr=2 heterogeneity=0.5 output=g.json "
            "cluster_output=c.json costs_output=costs.json",
            "doppler graph ppo_ant num_shards=8 output=g.json",
        ),
    ),
    "convert": Command(
        schema=ConvertConfig,
        run=convert,
        about="Write a graph file of any kind as our own JSON or as GraphML.",
        examples=(
            "doppler convert graph=w.json output=g.graphml",
            "doppler convert graph=t.stg ns_per_unit=1e6 output=g.json cluster=c.json "
            "costs_output=costs.json",
        ),
    ),
    "verify": Command(
        schema=VerifyConfig,
        run=verify,
        about="Check the instance suite: plans, values, schedules, bounds (exit status 1 if not).",
        positional="names",
        examples=("doppler verify", "doppler verify chain_mm hold", "doppler verify folder=mine"),
    ),
    "experiment": Command(
        schema=ExperimentConfig,
        run=experiment,
        about="Make the table of an experiment: planners over graphs and seeds, with resume.",
        positional="name",
        examples=(
            "doppler experiment doppler_table",
            "doppler experiment doppler_table graphs=[chainmm,ffnn] seeds=2 seconds=1",
            "doppler experiment ablation columns=[dual,ppo] simulations=500",
            "doppler experiment best_known",
            "doppler experiment bounds bound_seconds=600 graphs=[llama_block]",
        ),
    ),
    "pretrain": Command(
        schema=PretrainConfig,
        run=pretrain,
        about="Train one policy over many generated problems; can be stopped and resumed.",
        examples=(
            "doppler pretrain output=results/pretraining seconds=3600",
            "doppler pretrain output=results/pretraining resume=true",
        ),
    ),
    "transfer": Command(
        schema=TransferConfig,
        run=transfer,
        about="Show what policies of one graph and cluster are worth on another: chart and table.",
        examples=("doppler transfer cases=[p100_to_v100] seeds=5",),
    ),
    "report": Command(
        schema=ReportConfig,
        run=commands.report,
        about="Rebuild the page of a result folder.",
        positional="folder",
        examples=("doppler report results/latest",),
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status (2 for a mistake of the user)."""
    try:
        return _main(list(sys.argv[1:] if argv is None else argv))
    except BrokenPipeError:  # the reader of our output has had enough, as `| head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _main(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if words[0] == "--version":
        print(f"doppler {__version__}")
        return 0
    try:
        return _run(words)
    except DopplerError as error:
        print(f"doppler: {error}", file=sys.stderr)
        return USER_ERROR
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"doppler: a file cannot be read or written: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("doppler: interrupted; all workers are stopped", file=sys.stderr)
        return INTERRUPTED


def _run(words: list[str]) -> int:
    name, rest = words[0], words[1:]
    command = COMMANDS.get(name)
    if command is None:
        raise DopplerError(f"command {name!r} is unknown; {nearest(name, COMMANDS)}")
    if any(word in ("-h", "--help") for word in rest):
        print(_help(name, command, command.schema_for(rest)))
        return 0
    schema = command.schema_for(rest)
    bare = [word for word in rest if "=" not in word]
    is_list = command.positional and _is_list(command.schema, command.positional)
    if is_list and bare:
        words_of = ",".join(_quoted(word) for word in bare)
        rest = [f"{command.positional}=[{words_of}]", *(word for word in rest if "=" in word)]
        bare = []
    if command.positional and len(bare) > 1:
        raise DopplerError(
            f"doppler {name} takes one {command.positional}, and {bare[1]!r} is a second one"
        )
    overrides = [
        f"{command.positional}={_quoted(word)}" if command.positional and "=" not in word else word
        for word in rest
    ]
    config = compose_config(schema, overrides)
    return command.run(config, ["doppler", *words]) or 0


def _is_list(schema: type[Any], key: str) -> bool:
    return get_origin(flat_keys(schema)[key].type) is list


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _overview() -> str:
    lines = ["doppler: learned device placement for deep-RL jobs and dataflow graphs", ""]
    width = max(len(name) for name in COMMANDS)
    lines += [f"  {name:<{width}}  {command.about}" for name, command in COMMANDS.items()]
    lines += ["", "Settings are key=value; `doppler COMMAND --help` lists them with examples."]
    return "\n".join(lines)


def _help(name: str, command: Command, schema: type[Any]) -> str:
    lines = [f"doppler {name}: {command.about}", "", "Examples:"]
    lines += [f"  {example}" for example in command.examples]
    if command.schemas:
        words = ", ".join(command.schemas)
        lines += ["", f"{command.positional}, each with settings of its own: {words}"]
    keys = flat_keys(schema)
    if "job.name" in keys:
        choices = job_choices(schema)
        lines += ["", f"Jobs (job=NAME): {', '.join(choices)}"]
        lines += [
            f"  job={choice}: {_job_keys(job)}"
            for choice, job in choices.items()
            if not isinstance(job, JobConfig)
        ]
    lines += ["", "Settings:"]
    for key, item in keys.items():
        text = str(item.metadata.get("help", ""))
        default = "" if item.default is MISSING else f" [{_shown(item.default)}]"
        if item.default is MISSING and item.default_factory is not MISSING:
            value = item.default_factory()
            default = f" [{_shown(value)}]" if isinstance(value, list) else ""
        body = textwrap.fill(
            f"{text}{default}", width=96, initial_indent=" " * 6, subsequent_indent=" " * 6
        )
        lines += [f"  {key}", body]
    return "\n".join(lines)


def _job_keys(job: AnyJobConfig) -> str:
    """The settings of a job with their values, as words of a command line."""
    values = {item.name: getattr(job, item.name) for item in fields(job)}
    return " ".join(f"job.{key}={value}" for key, value in values.items() if key != "name")


def _shown(value: object) -> str:
    name = getattr(value, "name", None)
    return str(name) if isinstance(name, str) else "null" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main())
