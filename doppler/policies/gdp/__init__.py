"""The policy of GDP: devices for all ops in one shot."""
