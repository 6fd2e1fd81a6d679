"""GMIs of the tests."""

import os
import signal
import time

import numpy as np

from doppler.gmi import GMI


class Summer(GMI):
    """Adds up what the group counts; can be told to fail at a step, and goes on from a state."""

    def run(self, num_episodes, num_steps):
        total = np.zeros(8) if self.state is None else self.state["total"].copy()
        failing = self.settings.get("fails") == self.gmi_id
        failing &= self.attempt < self.settings.get("failures", 1)
        for step in range(self.first_step, num_episodes):
            if failing and step == self.settings["at"]:
                self.fail()
            values = np.full(8, float(step * (self.rank + 1)))
            self.collective(values)
            total += values
            self.checkpoint(step + 1, total=total)
            self.report(step=step)
        return total.tolist()

    def fail(self):
        match self.settings["how"]:
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "silent":
                time.sleep(60)
            case "printed":
                os.write(2, b"the simulator ran out of contacts\n")
                os._exit(3)
            case _:
                raise ArithmeticError("the loss is NaN")


class Placed(GMI):
    """Says where it is."""

    def run(self, num_episodes, num_steps):
        return {
            "cores": sorted(os.sched_getaffinity(0)),
            "threads": os.environ["OMP_NUM_THREADS"],
            "rank": self.rank,
            "group": self.group,
            "arguments": (num_episodes, num_steps),
            "draw": float(self.rng.random()),
        }


class Producer(GMI):
    """Sends its id and a number per record; waits for the weights of every episode."""

    def run(self, num_episodes, num_steps):
        weights = np.zeros(4, np.float32)
        for episode in range(num_episodes):
            while (version := self.read_weights(weights)) < episode:
                time.sleep(0.001)
            numbers = np.arange(episode * num_steps, (episode + 1) * num_steps)
            self.send(
                {
                    "producer": np.full(num_steps, self.gmi_id, np.int64),
                    "number": numbers,
                    "weight": np.full((num_steps, 2), weights[0], np.float32),
                },
                version,
            )
            self.flush()  # the weights that it waits for are made of these records


class Consumer(GMI):
    """Collects all records and publishes weights after every episode's worth."""

    def run(self, num_episodes, num_steps):
        seen = {}
        num_records = num_steps * self.settings["producers"]
        for episode in range(num_episodes):
            out = (
                np.zeros(num_records, np.int64),
                np.zeros(num_records, np.int64),
                np.zeros((num_records, 2), np.float32),
            )
            self.receive(out, version=episode)
            for producer, number, weight in zip(*out, strict=True):
                assert weight[0] == weight[1] == 10.0 * episode
                seen.setdefault(int(producer), []).append(int(number))
            self.publish_weights(np.full(4, 10.0 * (episode + 1), np.float32))
        return seen


class Waiter(GMI):
    """Waits for records that nobody sends."""

    def run(self, num_episodes, num_steps):
        self.receive((np.zeros(1, np.int64),), version=0)


class Sleeper(GMI):
    """Says something once, later than anybody else, and then never sends."""

    def run(self, num_episodes, num_steps):
        time.sleep(0.3)
        self.report()
        time.sleep(60)


class Lost(GMI):
    """Never is set up."""

    def setup(self):
        raise ValueError("no such environment")


class Stranger:
    """Is no GMI."""


class StoppedSender(GMI):
    """Is stopped by the operating system in the middle of a send."""

    def run(self, num_episodes, num_steps):
        class Trap(dict):
            def __getitem__(self, key):
                os.kill(os.getpid(), signal.SIGSTOP)
                return super().__getitem__(key)

        self.send(Trap(number=np.zeros(1, np.int64)), version=0)


class HalfSpeaker(GMI):
    """Is stopped after half a message to its parent."""

    def run(self, num_episodes, num_steps):
        self._context.control._socket.sendall(b"\x10\0\0\0\0\0\0\0half")
        os.kill(os.getpid(), signal.SIGSTOP)


class SteadySender(GMI):
    """Sends a record now and then, `num_steps` in all."""

    def run(self, num_episodes, num_steps):
        for number in range(num_steps):
            time.sleep(self.settings["every_s"])
            self.send({"number": np.full(1, number, np.int64)}, version=0)
        self.flush()


class SteadyReceiver(GMI):
    """Receives all records at once, then keeps busy with something else for a while."""

    def run(self, num_episodes, num_steps):
        out = (np.zeros(num_steps, np.int64),)
        self.receive(out, version=0)
        for _ in range(self.settings.get("stays", 0)):
            time.sleep(0.05)
            self.report()
        return out[0].tolist()


class Usurper(GMI):
    """Publishes weights, whoever the publisher is."""

    def run(self, num_episodes, num_steps):
        return self.publish_weights(np.zeros(4, np.float32))
