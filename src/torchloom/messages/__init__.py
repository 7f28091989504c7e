"""What is said: frozen structs, no I/O. `base` begins each, `membership` is who trains."""
