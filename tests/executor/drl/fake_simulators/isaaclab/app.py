"""Stands in for `isaaclab.app`: like the simulator, reads the process's arguments."""

import sys

launched = []


class SimulationApp:
    def close(self):
        launched.remove(self)


class AppLauncher:
    def __init__(self, launcher_args=None, **settings):
        if sys.argv[1:]:
            raise SystemExit(f"unrecognized arguments: {sys.argv[1:]}")
        assert settings == {"headless": True}
        self.app = SimulationApp()
        launched.append(self.app)
