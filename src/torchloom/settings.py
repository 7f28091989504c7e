"""The only reader of the process environment: where things live and what the user chose."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"  # where ranks of one host meet; nothing binds to all addresses
LOOPBACK_NAMES = ("localhost", LOOPBACK, "::1", "localhost.localdomain")
INSIDE_VARIABLE = "LOOM_INSIDE"  # 1: a command that was sent into an engine's job
ABOVE = "above"  # of LOOM_PLANE: root's plane watches the runs of this account
_LASTING = ("/tmp", "/var/tmp")  # local folders that outlive a job
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LONGEST_POINTER = 10_000  # bytes
LOCAL_HOST_NAME = "localhost"  # what TorchX puts into TORCHX_RANK0_HOST on one machine


def environment() -> Mapping[str, str]:
    """Return a copy of the environment, for code that is handed a mapping."""
    return dict(os.environ)


def replace_environment(env: Mapping[str, str]) -> None:
    """Replace the environment of this process, a fork that becomes another program."""
    os.environ.clear()
    os.environ.update(env)


def loom_home() -> Path:
    """Return the folder that holds runs; it may be on a network file system.

    A thread that acts for an account has that of the account.
    """
    acted = getattr(_acting, "home", None)
    return acted if acted is not None else own_home()


def own_home() -> Path:
    """Return the state folder of this process, whomever a thread of it acts for."""
    return Path(os.environ.get("LOOM_HOME") or Path.home() / ".torchloom").expanduser().absolute()


@contextmanager
def acting(home: Path) -> Iterator[None]:
    """Make this thread use the state folder of an account whose rights it has taken."""
    global _acting
    if _acting is None:
        import threading

        _acting = threading.local()
    _acting.home = home
    try:
        yield
    finally:
        _acting.home = None


_acting: Any = None  # made by the first thread that acts for an account


def runs_dir() -> Path:
    """Return the folder with one folder a run."""
    return loom_home() / "runs"


def runtime_dir() -> Path:
    """Return the short local folder (0700) for sockets and what must not be on a network disk.

    TMPDIR does not count where it can be avoided: batch systems give each job one of its own and
    remove it at the job's end, and all jobs of a user on a host share the plane.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and _is_ours(Path(base)) and os.access(base, os.W_OK):
        return Path(base) / "torchloom"
    import tempfile

    lasting = next((path for path in _LASTING if os.access(path, os.W_OK)), tempfile.gettempdir())
    return Path(lasting) / f"torchloom-{os.getuid()}"


def plane_dir() -> Path:
    """Return the local folder for the sockets of the plane that serves this state folder.

    The state folder names it, so that shells of one user find the same plane whatever their
    XDG_RUNTIME_DIR is. A name of another host or boot, or of a folder that is not ours alone, is
    ignored; then it is in the runtime folder of this shell.
    """
    import zlib

    name = f"plane-{zlib.crc32(os.fsencode(loom_home())):08x}"
    named = _named_folder(plane_pointer())
    return named if named is not None and named.name == name else runtime_dir() / name


def plane_pointer() -> Path:
    """Return the file of the state folder that names the folder of the plane's sockets here."""
    return loom_home() / "plane" / f"{os.uname().nodename}.lock"


def boot_id() -> str:
    """Return the id of this boot of this machine; nothing where the system has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _named_folder(pointer: Path) -> Path | None:
    """Return the folder that a pointer of ours names, if it is there and ours alone."""
    try:
        fd = os.open(pointer, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if found.st_uid != os.getuid() or found.st_mode & 0o022:
                return None
            host, boot, place = file.read(_LONGEST_POINTER).split(b"\n")[:3]
    except (OSError, ValueError):
        return None
    here = (os.fsencode(os.uname().nodename), boot_id().encode())
    folder = Path(os.fsdecode(place))
    is_ours = (host, boot) == here and folder.is_absolute()
    return folder if is_ours and all(map(_is_private, (folder.parent, folder))) else None


def _is_private(folder: Path) -> bool:
    """Tell whether a folder is there, no link, ours and closed to others."""
    import stat

    try:
        found = folder.lstat()
    except (OSError, ValueError):
        return False
    is_closed = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    return is_closed and found.st_uid == os.getuid()


def _is_ours(folder: Path) -> bool:
    try:
        return folder.stat().st_uid == os.getuid()
    except OSError:
        return False


def wants_plane() -> bool:
    """Tell whether the plane of this user watches runs; with `LOOM_PLANE=0` it does not."""
    return os.environ.get("LOOM_PLANE") != "0"


def has_plane_above() -> bool:
    """Tell whether the plane of these runs is root's: none is started for them here."""
    return os.environ.get("LOOM_PLANE") == ABOVE


def is_inside() -> bool:
    """Tell whether this command was sent to where a job's plane is: it goes no further."""
    return os.environ.get(INSIDE_VARIABLE) == "1"


def torchx_home() -> Path:
    """Return TorchX's own state folder, for programs that ask `specs.TORCHX_HOME`."""
    return Path(os.environ.get("TORCHX_HOME") or Path.home() / ".torchx")


def locale_name() -> str:
    """Return the locale of characters that the user chose; nothing where none is set.

    In the locale C an interpreter sets LC_CTYPE to a UTF-8 one of its own: the user did
    not choose that.
    """
    import sys

    own = os.environ.get("LC_CTYPE")
    if sys.flags.utf8_mode and own in ("C.UTF-8", "C.utf8", "UTF-8"):
        own = None
    return os.environ.get("LC_ALL") or own or os.environ.get("LANG") or ""


def custom_named_resources() -> str | None:
    """Return the module that holds the user's own named resources, if one is named."""
    return os.environ.get("TORCHX_CUSTOM_NAMED_RESOURCES") or None


def plugin_sources() -> str:
    """Return where TorchX's plugins are looked for: 0 to 3, as TorchX's registry reads it."""
    return os.environ.get("TORCHX_PLUGINS_SOURCE") or "3"


def config_file() -> str | None:
    """Return the one config file the user named; an empty string means none at all."""
    chosen = os.environ.get("LOOMCONFIG")
    return chosen if chosen is not None else os.environ.get("TORCHXCONFIG")


def user_name() -> str:
    """Return the user's name, as records show it."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return str(os.getuid())
