"""Experience channels: records go from agents to trainers, weights the other way.

A `Dispenser` cuts experience into typed packages, a `Packer` lays them into channels and batches
them, a `Migrator` routes batches from producers to consumers, a `Batcher` feeds a trainer.

Source: GMI-DRL, section 4 (channel-based experience sharing).
"""
