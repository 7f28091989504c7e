"""What surrounds a job when it begins: its source, packages, machine; read, and nothing started."""
