"""A job's environment: its variables for another shell, its Python packages for other hosts."""
