"""The live view of a plane: a screen on a terminal, a prompt everywhere, the same words in both."""
