"""A GMI that asks for memory; its process imports this file only."""

import numpy as np

from executor.gmi.base import GMI


class Allocates(GMI):
    """Maps memory that it never touches, and returns how much."""

    def run(self, num_episodes, num_steps):
        return np.empty(self.settings["bytes"], np.uint8).nbytes
