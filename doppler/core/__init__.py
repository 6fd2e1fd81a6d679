"""The shared types and the one scheduling rule; imports the standard library only."""
