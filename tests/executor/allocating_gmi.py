"""A GMI that asks for memory; its process imports this file only."""

import numpy as np

from executor.gmi.base import GMI


class Allocates(GMI):
    """Maps memory that it never touches, and returns how much."""

    def run(self, num_episodes, num_steps):
        return np.empty(self.settings["bytes"], np.uint8).nbytes


class AllocatesOnGPU(GMI):
    """The same on the GPU that its process sees."""

    def run(self, num_episodes, num_steps):
        import torch  # not loaded for processes of cores

        return torch.empty(self.settings["bytes"], dtype=torch.uint8, device="cuda:0").nbytes
