"""The node's agent as a relay: ranks on one side, the weaver on the other, a spool in between."""
