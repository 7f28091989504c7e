"""What is said between ranks, agents and the weaver, and how it travels."""
