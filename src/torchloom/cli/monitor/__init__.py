"""The live view of a plane: a screen on a terminal, a prompt elsewhere, with the same commands."""
