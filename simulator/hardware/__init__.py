"""Hardware catalogue: GPUs, links and nodes as data with a source per number."""
