"""A user's plane on this host: NATS, weaver, node agent, HTTP server, and their supervisor."""
