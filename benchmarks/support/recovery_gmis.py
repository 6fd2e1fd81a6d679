"""GMIs that work until one of them is killed in the middle of a communication."""

import os
import signal
import threading
import time

import numpy as np

from doppler.gmi import GMI, Package

RECORD_FLOATS = 60
CHANNEL_BATCH = 4096
MINIBATCHES = 8
FIELDS = (Package("state", "float32", (RECORD_FLOATS,)), Package("check", "float32"))


class Worker(GMI):
    """Kills (or stops) itself within a communication, soon after the beginning of step `at`."""

    def begin(self, step: int) -> None:
        """Plans its own end at the step that the settings say."""
        if self.attempt or not self.settings.get("victim") or step != self.settings["at"]:
            return

        def die() -> None:
            time.sleep(float(self.rng.uniform(0.0, self.settings["within_s"])))
            while not self.is_communicating:
                pass
            self.report(killed_at=time.monotonic())
            os.kill(os.getpid(), signal.SIGSTOP if self.settings["stops"] else signal.SIGKILL)

        threading.Thread(target=die, daemon=True).start()


class Reducer(Worker):
    """Data-parallel steps: sums of gradients, applied by everyone; a checkpoint every ten."""

    def run(self, num_episodes: int, num_steps: int) -> float:
        """Returns the first weight: minibatches done."""
        weights = np.zeros(num_steps, np.float32)
        if self.state is not None:
            weights[:] = self.state["weights"]
        for step in range(self.first_step, num_episodes):
            self.begin(step)
            for _ in range(MINIBATCHES):
                gradient = np.full(num_steps, 1.0 / len(self.group), np.float32)
                self.collective(gradient)
                weights += gradient
            if (step + 1) % 10 == 0:
                self.checkpoint(step + 1, weights=weights)
            if step == self.first_step:
                self.report(going_on=step, attempt=self.attempt)
        assert (weights == num_episodes * MINIBATCHES).all()  # each counted once, whoever did it
        return float(weights[0])


class Agent(Worker):
    """Sends records whose fields belong together."""

    def run(self, num_episodes: int, num_steps: int) -> None:
        """Sends its share of what the trainer lacks, a quarter of a batch at a time."""
        rows = CHANNEL_BATCH // 4
        lacking = num_steps - self.first_step_of("trainer")
        for step in range(lacking // len(self.group) // rows):
            self.begin(step)
            check = self.rng.standard_normal(rows).astype(np.float32)
            self.send({"state": np.repeat(check[:, None], RECORD_FLOATS, 1), "check": check}, 0)
        self.flush()


class Trainer(Worker):
    """Consumes records, checks every one, and saves how many it has trained on."""

    def run(self, num_episodes: int, num_steps: int) -> int:
        """Consumes `num_steps` records in all, those before the checkpoint included."""
        done = self.first_step
        out = (
            np.empty((CHANNEL_BATCH, RECORD_FLOATS), np.float32),
            np.empty(CHANNEL_BATCH, np.float32),
        )
        while done < num_steps:
            self.receive(out, version=0)
            assert (out[0] == out[1][:, None]).all(), "a record is torn"
            if done == self.first_step:
                self.report(going_on=done, attempt=self.attempt)
            done += len(out[1])
            self.checkpoint(done)
        return done
