"""Mapping templates for deep-RL jobs and the search over their variants."""
