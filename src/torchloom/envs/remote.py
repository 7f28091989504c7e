"""Run short scripts on other hosts over ssh, with a file as their input.

A script is one line without a single quote, handed to `sh -c` with its values as arguments: so any
login shell passes it on unchanged, and no value is parsed by a shell.
"""

import re
import shlex
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchloom.errors import UserError, shorten
from torchloom.launch.assembly.launchers import SSH_OPTIONS
from torchloom.launch.hosts.host_lists import same_host
from torchloom.settings import LOOPBACK_NAMES

UNREACHABLE = 255  # what ssh returns when it is ssh itself that failed
SERVED = "loom-served"
_DEST = re.compile(r"(~/|/)[A-Za-z0-9_.,+@%=:/-]*[A-Za-z0-9_]", re.ASCII)

_NAMES = (
    'd=$1; h=$2; t=$3; case $d in "~/"*) d=$HOME/${d#??};; esac; f=$d.loom-$t; umask 077; '
    'fail() { echo "$1" >&2; exit 3; }; '
)
_MINE = (  # in a folder that every user may write to, such as /tmp, a name may be taken
    'u=${d%/*}; mkdir -p "$u" || exit 3; '
    'mine() { if [ -k "${1%/*}" ] && { [ -L "$1" ] || [ -e "$1" ]; }; then '
    '[ -O "$1" ] && [ ! -L "$1" ] || fail "$1 is not yours: choose another --dest"; fi; }; '
    'mine "$u"; mine "$d"; '
)
RECEIVE = (
    _NAMES + _MINE + 'if [ -O "$d" ] && [ "$(cat "$d/.loom-hash" 2>/dev/null)" = "$h" ]; then '
    "echo present; exit 0; fi; "
    'if [ -e "$d" ]; then [ -O "$d" ] && [ -e "$d/.loom-env.json" ] || '
    'fail "$d exists and is not an environment of yours: choose another --dest"; fi; '
    'p=$f.$$.part; trap "rm -f \\"$p\\"" EXIT; '
    'cat > "$p" || exit 3; if command -v sha256sum >/dev/null; then s=$(sha256sum < "$p"); '
    'else s=$(shasum -a 256 < "$p"); fi; '
    '[ "${s%% *}" = "$h" ] || fail "the received file differs from the one that was sent"; '
    'mv "$p" "$f.tar" || exit 3; echo have'
)
SERVE = 'd=$1; t=$2; case $d in "~/"*) d=$HOME/${d#??};; esac; shift 2; ' + (
    f'"$@" < "$d.loom-$t.tar"; echo "{SERVED} $?"'
)
INSTALL = _NAMES + (
    'n=$f.new; trap "rm -rf \\"$n\\"" EXIT; mkdir "$n" && tar -xf "$f.tar" -C "$n" || exit 3; '
    '[ -x "$n/bin/python" ] || '
    'fail "its interpreter $(readlink "$n/bin/python") is not on this host: install it there"; '
    '"$n/bin/python" -IB "$n/bin/loom-relocate" "$n" "$d" || exit 3; echo "$h" > "$n/.loom-hash"; '
    'if [ -e "$d" ]; then mv "$d" "$f.old" || exit 3; fi; '
    'mv "$n" "$d" || { mv "$f.old" "$d"; exit 3; }; rm -rf "$f.old"; echo ready'
)
CLEAN = _NAMES + 'rm -f "$f.tar" "$f".*.part'


class BadDestination(UserError):
    """A folder that ssh, a shell and a script's first line could not all take."""

    code = "bad_destination"

    def __init__(self, text: str) -> None:
        super().__init__(
            f"--dest {shorten(text)!r}: write a full path (or ~/...) of letters, digits and "
            "._-+@%=:, without spaces"
        )


def check_destination(text: str) -> str:
    """Return the path without a slash at its end; raise BadDestination otherwise."""
    path = text.rstrip("/") if len(text) > 1 else text
    if not _DEST.fullmatch(path) or ".." in path.split("/") or path.count("/") < 1:
        raise BadDestination(text)
    return path


@dataclass(frozen=True, slots=True)
class RemoteResult:
    """How a command on a host went."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The last line of its error output."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}, without output"


class Ssh:
    """The way to other hosts; `words` is the command, such as `ssh -F CONFIG`."""

    def __init__(
        self, words: Sequence[str] = ("ssh",), own_host: str = "", limit: float = 3600.0
    ) -> None:
        self._words = tuple(words)
        self._own_host = own_host
        self._limit = limit
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def is_here(self, host: str) -> bool:
        """Tell whether a name means this machine."""
        known = self._own_host and same_host(host, self._own_host)
        return host in LOOPBACK_NAMES or bool(known)

    def command(self, host: str, script: str, *values: str) -> list[str]:
        """Return the words that run a script on a host; this host needs no ssh."""
        if self.is_here(host):
            return ["sh", "-c", script, "loom", *values]
        return self.far_command(host, script, *values)

    def far_command(self, host: str, script: str, *values: str) -> list[str]:
        """Return the words that run a script on a host, seen from any other one."""
        remote = ["sh", "-c", script, "loom", *values]
        return [*self._words, *SSH_OPTIONS, "--", host, shlex.join(remote)]

    def run(self, words: Sequence[str], stdin: Path | None = None) -> RemoteResult:
        """Run to the end, or to the limit; what cannot even start is an answer too."""
        with open(stdin or "/dev/null", "rb") as source:
            try:
                process = self._start(words, source.fileno())
            except OSError as error:
                return RemoteResult(UNREACHABLE, "", f"cannot run {words[0]}: {error.strerror}")
            try:
                out, err = process.communicate(timeout=self._limit)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                return RemoteResult(UNREACHABLE, "", f"not done in {self._limit:g} s")
            finally:
                with self._lock:
                    self._running.discard(process)
        return RemoteResult(
            process.returncode, out.decode(errors="replace"), err.decode(errors="replace")
        )

    def close(self) -> None:
        """End whatever runs, and start nothing more."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()

    def _start(self, words: Sequence[str], stdin: int) -> "subprocess.Popen[bytes]":
        with self._lock:
            if self._closed:
                raise InterruptedError(0, "interrupted")
            pipes = subprocess.PIPE
            process = subprocess.Popen(words, stdin=stdin, stdout=pipes, stderr=pipes)
            self._running.add(process)
            return process
