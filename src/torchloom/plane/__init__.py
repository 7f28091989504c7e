"""A user's plane on this host: NATS, weaver and node agent, kept alive by one process."""
