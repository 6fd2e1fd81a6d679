"""The compiled engine: arrays in, integers out."""
