"""The HTTP door: REST, streams and people; it decides nothing and writes no database."""
