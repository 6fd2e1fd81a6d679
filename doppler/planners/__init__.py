"""Ways to make a plan, one per file: `plan(problem, scorer, budget, rng) -> Plan`."""
