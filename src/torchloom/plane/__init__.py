"""A user's plane on this host: NATS, weaver, node agent, HTTP server, and their supervisor.

Read process.py first: it starts the parts of parts.py and answers at the control socket.
"""
