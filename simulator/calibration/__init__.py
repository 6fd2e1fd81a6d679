"""Robust fits of what measured traces say: lines, noise, launch overheads, links, and their error.

`simulator/calibrate.py` turns traces into observations; these files turn observations into numbers.
"""
