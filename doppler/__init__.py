"""DOPPLER: learned device placement for deep-reinforcement-learning jobs and dataflow graphs."""

__version__ = "0.1.0"
