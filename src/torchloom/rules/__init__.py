"""What to decide, as pure functions: `step(state, event) -> (state, effects)`."""
