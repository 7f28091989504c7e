"""Live recovery, decided: losses come in, the next generation and its messages go out."""
