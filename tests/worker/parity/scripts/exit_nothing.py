import witness  # noqa: F401

raise SystemExit
