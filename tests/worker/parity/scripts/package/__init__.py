"""A package of the user, run with -m."""
