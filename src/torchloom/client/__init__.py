"""How to reach a plane: find the one of this user, ask it, watch it, start it."""
