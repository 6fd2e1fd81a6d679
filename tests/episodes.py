"""How long episodes last, windows in which none ends included."""


def steps_per_end(rewards, window):
    """Environment steps per ended episode in each stretch of `window` iterations.

    A stretch in which no episode ends counts as if one ended at its end, which is too short.
    """
    before, lengths = 0, []
    for start in range(0, len(rewards), window):
        stretch = rewards[start : start + window]
        ends = sum(record.num_episodes for record in stretch)
        lengths.append((stretch[-1].env_steps - before) / max(1, ends))
        before = stretch[-1].env_steps
    return lengths
