"""The process that inspects checkpoints, started by name from processes without torch."""
