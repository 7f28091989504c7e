"""Read a credentials file of a NATS server: a user's JWT and the seed of its key."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from torchloom.errors import UserError

ADDRESS_VARIABLES = ("LOOM_NATS", "torchLoom_ADDR")  # the first that is set holds
ADDRESS_VARIABLE = ADDRESS_VARIABLES[0]
CREDENTIALS_VARIABLE = "LOOM_NATS_CREDS"  # a file: who we are there
AUTHORITY_VARIABLE = "LOOM_NATS_CA"  # a file: by which certificate the server is known
AGENT_ID_VARIABLE = "LOOM_AGENT_ID"  # the name that a node's agent has on the bus
DEFAULT_PORT = 4222
DEFAULT = f"nats://localhost:{DEFAULT_PORT}"


def chosen(env: Mapping[str, str]) -> str:
    """Return the address that the environment names; empty when it names none."""
    return next((env[name] for name in ADDRESS_VARIABLES if env.get(name)), "")


class CredentialsUnusable(UserError):
    """The file is not there, others can read it, or it holds something else."""

    code = "credentials_unusable"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"cannot use the credentials in {path}: {why}")


def read(path: Path) -> tuple[str, str]:
    """Return the JWT and the seed that a file holds, if it is readable by this user alone."""
    try:
        with open(path, encoding="ascii") as file:
            found = os.fstat(file.fileno())
            text = file.read(1 << 16)
    except (OSError, ValueError) as error:
        raise CredentialsUnusable(path, str(error)) from error
    if found.st_uid != os.getuid():
        raise CredentialsUnusable(path, f"it belongs to user {found.st_uid}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise CredentialsUnusable(path, f"others can read it; `chmod 600 {path}`")
    try:
        return split(text)
    except ValueError as error:
        raise CredentialsUnusable(path, str(error)) from error


def split(text: str) -> tuple[str, str]:
    """Return the JWT and the seed of such a file's text."""
    bare = [line.strip() for line in text.splitlines() if line.strip()[:1] not in ("", "-")]
    if len(bare) != 2:
        raise ValueError("it contains no JWT with a seed")
    return bare[0], bare[1]
