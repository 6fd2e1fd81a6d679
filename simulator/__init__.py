"""The discrete-event simulator: one specification, one compiled engine, the same answers."""
