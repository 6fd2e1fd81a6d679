"""The deep-reinforcement-learning jobs of the executor: environments, agents, PPO, and kernels.

`config.py` says what a job is, `sizes.py` what its tensors weigh, `job.py` hands out its kernels.
"""
