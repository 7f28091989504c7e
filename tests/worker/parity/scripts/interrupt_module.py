import witness  # noqa: F401

raise KeyboardInterrupt("by hand")
