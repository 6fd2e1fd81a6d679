"""The processes that drive devices, one file per kind."""
