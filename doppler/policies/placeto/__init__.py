"""The policy of PLACETO: a device for one op of a complete placement at a time."""
