"""Runs dataflow graphs for real: workers, shared memory, and the kernels of each kind of job."""
