"""A training that can be left at any step and gone on with: model, data, chance, checkpoints."""
