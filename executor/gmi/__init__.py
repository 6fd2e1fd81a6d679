"""GMIs: one process per role and share of the hardware, as the user writes it."""
