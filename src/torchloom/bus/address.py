"""The variables by which a process of the plane finds its NATS, and comes in."""

from collections.abc import Mapping

ADDRESS_VARIABLES = ("LOOM_NATS", "torchLoom_ADDR")  # the first that is set holds
ADDRESS_VARIABLE = ADDRESS_VARIABLES[0]
CREDENTIALS_VARIABLE = "LOOM_NATS_CREDS"  # a file: who we are there
AUTHORITY_VARIABLE = "LOOM_NATS_CA"  # a file: by which certificate the server is known
AGENT_ID_VARIABLE = "LOOM_AGENT_ID"  # the name under which a node's agent speaks
DEFAULT_PORT = 4222
DEFAULT = f"nats://localhost:{DEFAULT_PORT}"


def chosen(env: Mapping[str, str]) -> str:
    """Return the address that the environment names; nothing when it names none."""
    return next((env[name] for name in ADDRESS_VARIABLES if env.get(name)), "")
