"""Collectives between the processes of one host, in shared memory."""
