"""The instance suite: problems with their best known plans and proven bounds, as package data."""
