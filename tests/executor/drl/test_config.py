"""Configs: round trip, and one clear refusal per rule."""

import json

import pytest

from doppler.core.errors import ConfigError
from executor.drl.config import PPOJobConfig
from executor.drl.presets import PRESETS


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_round_trip_through_json(name):
    config = PRESETS[name]
    assert PPOJobConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_shards": 0}, "num_shards must be at least 1, but is 0"),
        ({"chunk": 5}, "chunk must divide horizon 16, but is 5"),
        ({"minibatches": 7}, "minibatches must divide the 3072 rows"),
        ({"num_trainers": 5000}, "num_trainers must be at most the 1536 rows"),
        ({"gamma": 1.5}, r"gamma must lie in \[0.0, 1.0\]"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"hidden": []}, "hidden must be one or more positive widths"),
        ({"hidden": [32.5]}, "'hidden' must be a list of int"),
        ({"horizon": 16.0}, "'horizon' must be int, but is 16.0"),
        ({"fused": 1}, "'fused' must be bool, but is 1"),
        ({"seed": True}, "'seed' must be int, but is True"),
        ({"horizen": 16}, "did you mean 'horizon'"),
        ({"custom_path": "a.py"}, "custom_path and custom_name go together"),
        ({"custom_path": "a.py", "custom_name": "A"}, "exactly one of environment and custom_path"),
        ({"environment": ""}, "exactly one of environment and custom_path"),
    ],
)
def test_refusals_name_rule_and_value(settings, message):
    with pytest.raises(ConfigError, match=message):
        PPOJobConfig.from_dict(settings)
