"""Shards become checkpoints, and old checkpoints go. Read `collection` first."""
