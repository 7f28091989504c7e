"""Migrations of `records`, one module each."""
