"""The only reader of the process environment: where things live and what the user chose."""

import os
from collections.abc import Mapping
from pathlib import Path

LOOPBACK = "127.0.0.1"  # where ranks of one host meet; nothing binds to all addresses
LOOPBACK_NAMES = ("localhost", LOOPBACK, "::1", "localhost.localdomain")
INSIDE_VARIABLE = "LOOM_INSIDE"  # 1: a command that was sent into an engine's job
LOCAL_HOST_NAME = "localhost"  # what TorchX puts into TORCHX_RANK0_HOST on one machine


def environment() -> Mapping[str, str]:
    """Return a copy of the environment, for code that is handed a mapping."""
    return dict(os.environ)


def replace_environment(env: Mapping[str, str]) -> None:
    """Give this process, a fork that becomes another program, an environment of its own."""
    os.environ.clear()
    os.environ.update(env)


def loom_home() -> Path:
    """Return the folder that holds runs; it may be on a network file system."""
    return Path(os.environ.get("LOOM_HOME") or Path.home() / ".torchloom").expanduser().absolute()


def runs_dir() -> Path:
    """Return the folder with one folder a run."""
    return loom_home() / "runs"


def runtime_dir() -> Path:
    """Return the short local folder (0700) for sockets and what must not be on a network disk."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK):
        return Path(base) / "torchloom"
    import tempfile

    return Path(tempfile.gettempdir()) / f"torchloom-{os.getuid()}"


def plane_dir() -> Path:
    """Return the local folder for the sockets of the plane that serves this state folder."""
    import zlib

    return runtime_dir() / f"plane-{zlib.crc32(os.fsencode(loom_home())):08x}"


def wants_plane() -> bool:
    """Tell whether runs have the plane of this user watch them; `LOOM_PLANE=0` says no."""
    return os.environ.get("LOOM_PLANE") != "0"


def is_inside() -> bool:
    """Tell whether this command was sent to where a job's plane is: it goes no further."""
    return os.environ.get(INSIDE_VARIABLE) == "1"


def torchx_home() -> Path:
    """Return TorchX's own state folder, for programs that ask `specs.TORCHX_HOME`."""
    return Path(os.environ.get("TORCHX_HOME") or Path.home() / ".torchx")


def locale_name() -> str:
    """Return the locale of characters that the user chose; nothing where none is set.

    In the locale C an interpreter sets LC_CTYPE to a UTF-8 one of its own: that says nothing.
    """
    import sys

    own = os.environ.get("LC_CTYPE")
    if sys.flags.utf8_mode and own in ("C.UTF-8", "C.utf8", "UTF-8"):
        own = None
    return os.environ.get("LC_ALL") or own or os.environ.get("LANG") or ""


def custom_named_resources() -> str | None:
    """Return the module that holds the user's own named resources, if one is named."""
    return os.environ.get("TORCHX_CUSTOM_NAMED_RESOURCES") or None


def config_file() -> str | None:
    """Return the one config file the user named; an empty string means none at all."""
    chosen = os.environ.get("LOOMCONFIG")
    return chosen if chosen is not None else os.environ.get("TORCHXCONFIG")


def user_name() -> str:
    """Return who is asking, as records show it."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return str(os.getuid())
