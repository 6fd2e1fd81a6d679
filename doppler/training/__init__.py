"""Training of the policies: imitation, reinforcement learning, elites, checkpoints."""
