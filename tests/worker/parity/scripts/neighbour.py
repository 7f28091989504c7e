"""A module of the user, beside the script."""
