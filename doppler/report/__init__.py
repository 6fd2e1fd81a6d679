"""What a run shows: traces for viewers, where time goes, tables, one self-contained page."""
