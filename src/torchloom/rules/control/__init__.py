"""Commands, decided: at which step one takes effect on all ranks, and which is undone."""
