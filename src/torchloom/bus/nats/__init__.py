"""The bus over NATS: `client` is the bus, `connection` the protocol. No other room uses NATS."""
