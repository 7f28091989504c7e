"""`loom checkpoint ls|verify|diff|export|rm`: look at, check, compare and remove what was saved."""
