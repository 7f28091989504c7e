"""Migrations of `state`, one module each."""
