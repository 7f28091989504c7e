"""Inside every rank, and the processes beside it that need torch."""
