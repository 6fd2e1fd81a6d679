"""Cost models: where the times come from that engines and planners read."""
