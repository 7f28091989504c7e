"""`loom checkpoint ls|verify|diff|export|rm`: list, verify, compare, export, remove checkpoints."""
