"""From settings to a tensor graph that runs for real."""

from dataclasses import fields

from doppler.core.errors import ConfigError
from doppler.core.problem import Objective
from doppler.graphs.ffnn import FFNNShape, ffnn
from doppler.graphs.llama import LlamaShape, llama_block, llama_layer
from doppler.graphs.matmul_chain import ChainShards, matmul_chain
from doppler.graphs.tensor_program import TensorProgram
from doppler.real_job import RealJob
from doppler.tensor_config import (
    ChainJobConfig,
    FFNNJobConfig,
    LlamaBlockJobConfig,
    LlamaLayerJobConfig,
    TensorJobConfig,
)
from executor.job_spec import JobSpec

TENSOR_FACTORY = "executor.tensors.job:TensorJob"


def tensor_spec(program: TensorProgram, seed: int = 0) -> JobSpec:
    """Returns the recipe that runs a tensor graph for real; inputs are drawn from `seed`."""
    return JobSpec(
        path=TENSOR_FACTORY,
        config={
            "dtype": program.dtype,
            "seed": seed,
            "instructions": {
                name: {
                    "kind": step.kind,
                    "in_shapes": [list(shape) for shape in step.in_shapes],
                    "out_shapes": [list(shape) for shape in step.out_shapes],
                }
                for name, step in program.instructions.items()
            },
        },
    )


def tensor_program(settings: TensorJobConfig) -> TensorProgram:
    """Returns the graph of `settings` with what its ops compute.

    Raises:
        GraphError: If a dimension is cut into more parts than it has, or unevenly where it may not.
        ConfigError: If the settings are those of no tensor graph.
    """
    match settings:
        case ChainJobConfig():
            shards = ChainShards(
                rows=settings.rows,
                inner=settings.inner,
                cols=settings.cols,
                de_inner=settings.de_inner,
            )
            return matmul_chain(settings.size, shards, settings.dtype)
        case FFNNJobConfig():
            shape = {item.name: getattr(settings, item.name) for item in fields(FFNNShape)}
            return ffnn(FFNNShape(**shape), settings.dtype)
        case LlamaLayerJobConfig():
            layer = LlamaShape(vocabulary=settings.vocabulary, **_block_sizes(settings))
            return llama_layer(layer, settings.dtype)
        case LlamaBlockJobConfig():
            return llama_block(LlamaShape(**_block_sizes(settings)), settings.dtype)
    raise ConfigError(f"{type(settings).__name__} are the settings of no tensor graph")


def build_tensor_job(settings: TensorJobConfig, seed: int) -> RealJob:
    """Returns the job of `settings`; its inputs are drawn from `seed`.

    Raises:
        GraphError: If a dimension cannot be cut as the settings say.
    """
    program = tensor_program(settings)
    graph = program.graph
    flop = sum(op.flop for op in graph.ops)
    sizes = [
        (item.name, str(getattr(settings, item.name)))
        for item in fields(settings)
        if item.name != "name"
    ]
    return RealJob(
        name=settings.name,
        graph=graph,
        spec=tensor_spec(program, seed),
        objective=Objective.makespan,
        size=f"{flop / 1e9:.2f} Gflop a pass",
        facts=(*sizes, ("work of a pass", f"{flop / 1e9:.2f} Gflop"), ("ops", str(graph.num_ops))),
    )


def _block_sizes(settings: LlamaBlockJobConfig) -> dict[str, int]:
    names = ("tokens", "hidden", "heads", "feed_forward", "shards", "row_blocks")
    return {name: getattr(settings, name) for name in names}
