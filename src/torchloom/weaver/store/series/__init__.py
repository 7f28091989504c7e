"""The database `records`: metrics and events of ranks. Read `records`, then `writer`."""
