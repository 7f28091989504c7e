"""Look into checkpoints: what they hold, how two differ, the model of one as a file of its own."""
