"""Few episodes on a machine and a graph that the policies have not seen, against all the others.

4x P100 -> 8x V100 and 8x A100 -> 8x H100 (`doppler.transfer`): the checkpoint is the pretrained
pair (or that of --policy) after stage II on a matrix chain on the source, the target graph is a
LLaMA block, whose ops are bound by arithmetic or by memory, so that its best plan is another one
on another generation.

    worst_few_shot_over_best       worst seed of the worst case: at most 200 episodes / best known
    mean_few_shot_over_best        the worst case's mean over seeds
    worst_ARM_over_best            worst case's mean over seeds of the other arms

    python benchmarks/transfer.py [--seeds 5] [--seed 0] [--policy FOLDER] [--cases p100_to_v100]
                                  [--quick] [--output FOLDER]

`--policy`: a pair made by `doppler pretrain`, such as one that has seen no transformer block
(`leave_out=[llama]`). `--quick`: one seed and a short reference. The table, its data and the chart
are written to the output folder.
"""

import argparse
import sys

import numpy as np
from support.common import finish

from doppler.policy_config import TransferConfig
from doppler.training.learner import torch_threads
from doppler.transfer import measure_transfer

TARGETS = {"worst_few_shot_over_best": "<= 1.02", "few_shot_episodes": "<= 200"}
CASES = ["p100_to_v100", "a100_to_h100"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="seeds per case")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--policy", help="folder of the pair to start from")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--quick", action="store_true", help="one seed, a short reference")
    parser.add_argument("--output", default="results/transfer", help="folder of chart and table")
    arguments = parser.parse_args()
    config = TransferConfig(
        cases=arguments.cases.split(","),
        policy=arguments.policy,
        seed=arguments.seed,
        seeds=1 if arguments.quick else arguments.seeds,
        output=arguments.output,
        reference=4000 if arguments.quick else 20000,
    )
    with torch_threads(1):
        results, best = measure_transfer(config, [sys.executable, *sys.argv])
    figures = {}
    for arm in dict.fromkeys(row.arm for row in results):
        ratios = {
            case: [
                row.value_ns / best[case] for row in results if (row.case, row.arm) == (case, arm)
            ]
            for case in config.cases
        }
        means = {case: float(np.mean(values)) for case, values in ratios.items()}
        if arm == "few_shot":
            figures["worst_few_shot_over_best"] = max(max(values) for values in ratios.values())
            figures["mean_few_shot_over_best"] = max(means.values())
            for case, mean in means.items():
                figures[f"{case}_few_shot_over_best"] = mean
        else:
            figures[f"worst_{arm}_over_best"] = max(means.values())
    figures["few_shot_episodes"] = max(row.simulations for row in results if row.arm == "few_shot")
    figures["seeds"] = config.seeds
    finish("transfer", figures, TARGETS, seed=config.seed)


if __name__ == "__main__":
    main()
