"""Unix accounts of people on a plane that runs as root: who they are, and work with their rights.

A job of a person who is bound to an account runs as that account, in a state folder of its own.
What root reads or writes there is done within `rights`: the kernel then checks this thread as it
would check the account, so a link to what the account may not open is refused. `python -m
torchloom.accounts` turns a process of root into one of an account for good, and executes a command.
"""

import contextlib
import ctypes
import os
import pwd
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, ParamSpec, TypeVar

from torchloom import settings
from torchloom.errors import Failure, UserError, shorten
from torchloom.unix import acting, is_acting

P = ParamSpec("P")
T = TypeVar("T")

FOLDER = "accounts"  # in the state folder: one state folder an account
_SETGROUPS = {"x86_64": 116, "aarch64": 159}  # the system call, which changes one thread alone
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION = 0x20080522
_UNCHANGED = 0xFFFFFFFF  # asks for the present id
_UMASK = 0o077
_FIRST_LINE, _MOST_FDS = 3, 1 << 20
_MOST_LOG = 4 << 20  # bytes of an account's log, after which it is begun anew
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class BadAccount(UserError):
    """A person cannot be bound to this account, or a job cannot run as it."""

    code = "bad_account"

    def __init__(self, name: str, why: str, remedy: str) -> None:
        self.field = "run_as"
        super().__init__(f"no job can run as {shorten(name)!r}: {why}; {remedy}")


class RightsLost(Failure):
    """This thread cannot be made to act as an account."""

    code = "rights_lost"


@dataclass(frozen=True, slots=True)
class Account:
    """A unix account, as the system knows it."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    user_home: str
    shell: str

    @property
    def folder(self) -> Path:
        """Return the state folder of this account's jobs."""
        return settings.own_home() / FOLDER / self.name

    def variables(self) -> dict[str, str]:
        """Return the variables by which its processes know the account."""
        return {
            "HOME": self.user_home,
            "USER": self.name,
            "LOGNAME": self.name,
            "SHELL": self.shell,
            "LOOM_HOME": str(self.folder),
            "LOOM_PLANE": settings.ABOVE,
        }


def is_root() -> bool:
    """Tell whether this process may act as other accounts."""
    return os.geteuid() == 0


def find(name: str) -> Account:
    """Return an account by its name; raise BadAccount when there is none."""
    try:
        found = pwd.getpwnam(name)
    except (KeyError, ValueError):
        raise BadAccount(
            name, "this host has no such account", "`getent passwd` lists them"
        ) from None
    groups = tuple(sorted(os.getgrouplist(found.pw_name, found.pw_gid)))
    shell = found.pw_shell or "/bin/sh"
    return Account(found.pw_name, found.pw_uid, found.pw_gid, groups, found.pw_dir, shell)


def of_run(job: str) -> Account | None:
    """Return the account whose state folder has a run of this id; root alone can find it."""
    if not is_root() or not job or "/" in job or job.startswith("."):
        return None
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(settings.own_home() / FOLDER)):
            with contextlib.suppress(BadAccount), rights(account := find(name)):
                if (account.folder / "runs" / job).is_dir():
                    return account
    return None


def within(name: str, act: Callable[P, T], *words: P.args, **more: P.kwargs) -> T:
    """Call a function with the rights of an account, or as the plane's own user without a name."""
    with rights(find(name) if name else None):
        return act(*words, **more)


def check(name: str, may_be_root: bool) -> Account:
    """Return an account that jobs of a person may run as; raise BadAccount when they may not."""
    if not is_root():
        why = "this plane does not run as root, so its jobs run as its own user"
        raise BadAccount(name, why, "start the plane as root, or leave `run_as` out")
    account = find(name)
    if account.uid == 0 and not may_be_root:
        why = "that is root, which only an admin may be"
        raise BadAccount(name, why, "choose another account, or make the user an admin")
    if os.uname().machine not in _SETGROUPS:
        why = f"{os.uname().machine} is a machine on which this has never been tried"
        raise BadAccount(name, why, "run the plane on x86_64 or aarch64")
    if account.uid:
        make_folder(account)
    return account


def make_folder(account: Account) -> Path:
    """Return the state folder of an account, made if need be: its own, closed to all others."""
    folder = account.folder
    folder.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    above = folder.parent.lstat()
    if above.st_uid != 0 or not stat.S_ISDIR(above.st_mode) or above.st_mode & 0o022:
        why = f"{folder.parent} must belong to root alone"
        raise BadAccount(account.name, why, f"`chown root {folder.parent}`, `chmod 711`")
    folder.parent.chmod(0o711)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_uid not in (0, account.uid):
            why = f"{folder} belongs to user {os.fstat(fd).st_uid}"
            raise BadAccount(account.name, why, "move it away")
        os.fchown(fd, account.uid, account.gid)
        os.fchmod(fd, 0o700)
    finally:
        os.close(fd)
    _see(account, folder)
    return folder


def _see(account: Account, folder: Path) -> None:
    """Refuse an account that cannot reach its own state folder, or run our interpreter."""
    with rights(account):
        for path in (folder, Path(sys.executable), Path(__file__)):
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
            except OSError as error:
                why = f"it cannot open {path}: {error.strerror}"
                remedy = "`chmod o+x` the folders above it, or set LOOM_HOME to another folder"
                raise BadAccount(account.name, why, remedy) from error


# What this thread may do.


@contextlib.contextmanager
def rights(account: Account | None) -> Iterator[None]:
    """Have this thread act in the file system as an account, in its state folder.

    Nothing else is to be begun within: a thread or a process that is made there would keep these
    rights, or be root's. None is the plane's own user, and changes nothing.
    """
    if account is None or account.uid == os.geteuid():
        yield
        return
    if is_acting():
        raise RightsLost("a thread that acts as one account cannot act as another")
    groups = os.getgroups()
    try:
        _become_in_files(account.uid, account.gid, account.groups)
        with settings.acting(account.folder), acting(account.uid):
            yield
    finally:
        _become_in_files(os.geteuid(), os.getegid(), groups)


def _become_in_files(uid: int, gid: int, groups: Sequence[int]) -> None:
    """Change the identity of this thread in the file system, or raise."""
    if _libc is None:
        raise RightsLost("only Linux lets one thread act as another account")
    _libc.setfsuid(os.geteuid())  # as root: groups are changed by root alone
    array = (ctypes.c_uint32 * len(groups))(*groups)
    done = _libc.syscall(_SETGROUPS[os.uname().machine], len(groups), array)
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    if done != 0 or _libc.setfsuid(_UNCHANGED) != uid or _libc.setfsgid(_UNCHANGED) != gid:
        if uid == os.geteuid():
            os.abort()  # a thread of root that stays another's would do harm unseen
        raise RightsLost(f"the kernel does not let this process act as user {uid}")


# Another process.


def command(
    account: Account, words: Sequence[str], log: str = "", parent: int = 0, sockets: int = 0
) -> list[str]:
    """Return the command by which root has an account execute words.

    `log` is a file below its state folder for what they print. The kernel ends them with their
    `parent`. They inherit so many `sockets`, the descriptors after the first three.
    """
    fields = [account.name, log, str(parent), str(sockets)]
    return [sys.executable, "-P", "-m", "torchloom.accounts", *fields, *words]


def environment(account: Account, env: Mapping[str, str]) -> dict[str, str]:
    """Return variables for an account's processes: those given, less those of the plane's user."""
    kept = {name: value for name, value in env.items() if name not in _OF_THE_GIVER}
    return {**kept, **account.variables()}


_OF_THE_GIVER = frozenset(
    (
        *("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "TMPDIR"),
        *("SSH_AUTH_SOCK", "BASH_ENV", "LOOMCONFIG", "TORCHXCONFIG", "HF_HOME", "TORCH_HOME"),
        *("LOOM_CHECKPOINTS", "LOOM_DATABASE", "MAIL", "OLDPWD", "PWD", "SUDO_UID", "SUDO_USER"),
    )
)


def become(account: Account) -> None:
    """Become an account for good: its user, groups and umask, no capability, no key of root."""
    machine = os.uname().machine
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    os.umask(_UMASK)
    if _libc is not None and account.uid:
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
        _libc.syscall(_CAPSET[machine], header, (ctypes.c_uint32 * 6)())
        _libc.syscall(_KEYCTL[machine], 1, None)  # a session keyring of its own
    if os.getresuid() != (account.uid,) * 3 or os.getresgid() != (account.gid,) * 3:
        raise RightsLost(f"this process could not become {account.name}")


def main(words: Sequence[str]) -> NoReturn:
    """Become the account that the first word names, and execute the words from the fifth on."""
    name, log, parent, lines = words[0], words[1], int(words[2]), int(words[3])
    account = find(name)
    os.chdir(os.sep)
    os.closerange(_FIRST_LINE + lines, _MOST_FDS)
    become(account)
    if parent and _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if parent and os.getppid() != parent:
        os._exit(127)
    env = dict(settings.environment())
    if log:
        _write_to(Path(env["LOOM_HOME"]) / log)
    for line in range(_FIRST_LINE, _FIRST_LINE + lines):
        os.set_inheritable(line, True)
    os.execve(words[4], list(words[4:]), env)


def _write_to(log: Path) -> None:
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(log, flags, 0o600)
    if os.fstat(fd).st_size > _MOST_LOG:
        os.ftruncate(fd, 0)
    os.dup2(fd, 1)
    os.dup2(fd, 2)


if __name__ == "__main__":
    main(sys.argv[1:])
