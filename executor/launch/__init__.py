"""Starts workers."""
