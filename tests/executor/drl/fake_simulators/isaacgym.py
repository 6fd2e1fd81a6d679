"""Stands in for Isaac Gym: like it, refuses to be imported after torch."""

import sys

if "torch" in sys.modules:
    raise ImportError("PyTorch was imported before isaacgym modules")
