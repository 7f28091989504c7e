"""What can be asked of a weaver, over a unix socket and over NATS. Read `router` first."""
