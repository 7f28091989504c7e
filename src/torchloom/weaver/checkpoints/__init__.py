"""Turn shards into checkpoints, and remove old ones. Read `collection` first."""
