"""The state of the source a job runs from, by git; nothing that a repository names is executed."""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any
from urllib.parse import urlsplit

LIMIT = 2**20  # bytes of a diff that are kept
PATIENCE = 10.0  # seconds for all answers of git
_MOST_NAMES = 1000  # untracked files that are named
_KEPT = ("PATH", "HOME", "XDG_CONFIG_HOME", "TMPDIR")
_QUIET = {
    "LC_ALL": "C",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_PAGER": "cat",
}
# Each of these may name a program, in a repository's own configuration.
_HARMLESS = (
    *("core.fsmonitor=", "core.hooksPath=/dev/null", "diff.external=", "core.pager=cat"),
    *("protocol.allow=never", "core.sshCommand=false", "core.askPass=", "core.splitIndex=false"),
)
_DIFF = (
    *("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty"),
    *("--no-relative", "--src-prefix=a/", "--dst-prefix=b/"),
)
_FILTERS = r"^filter\..*\.(clean|smudge|process|required)$"
FILE = "source.json"
PATCH = "diff.patch"
_PRIVATE = 0o600


@dataclass(frozen=True, slots=True)
class SourceState:
    """The commit of a repository, and how its folder differs from that."""

    facts: dict[str, Any]
    patch: bytes


class Silent(Exception):
    """Git gives no answer, for this reason."""


def source_of(folders: Sequence[Path], env: Mapping[str, str]) -> SourceState | None:
    """Return the state of the first of these folders that is in a repository."""
    for folder in folders:
        with contextlib.suppress(Silent):
            repository = Repository(folder, env)
            repository.folder = Path(repository.line("rev-parse", "--show-toplevel"))
            with repository.aside():
                return _source(repository)
    return None


class Repository:
    """A folder that git is asked about, with whatever a configuration could start turned off."""

    def __init__(self, folder: Path, env: Mapping[str, str], limit: float = PATIENCE) -> None:
        self.folder = folder
        self._env = {name: env[name] for name in _KEPT if name in env} | _QUIET
        self._deadline = time.monotonic() + limit
        self._off = list(_HARMLESS)
        found = self.text("config", "--name-only", "--get-regexp", _FILTERS, missing="")
        for name in sorted(set(found.split("\n")) - {""}):
            self._off.append(f"{name}=" + "false" * name.endswith(".required"))

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Have git write to a copy of its index, so that a concurrent commit is not disturbed."""
        index = self.folder / self.line("rev-parse", "--git-path", "index")
        with tempfile.TemporaryDirectory(prefix="loom-git-") as folder:
            with contextlib.suppress(OSError):  # nothing was ever added
                # With its time: git reads again what was changed in the second it is from.
                shutil.copy2(index, Path(folder, "index"))
            self._env["GIT_INDEX_FILE"] = str(Path(folder, "index"))
            yield
        del self._env["GIT_INDEX_FILE"]

    def line(self, *words: str) -> str:
        """Return the one line that git answers with."""
        return self.text(*words).removesuffix("\n")

    def text(self, *words: str, missing: str | None = None) -> str:
        """Return an answer; where git has none, what stands for it or else `Silent`."""
        data, _, code = self.read(words, LIMIT)
        if code != 0 and missing is None:
            raise Silent(f"git {words[0]}: code {code}")
        return data.decode(errors="replace") if code == 0 else str(missing)

    def read(self, words: Sequence[str], most: int) -> tuple[bytes, bool, int]:
        """Return at most so much of an answer, whether there was more, and git's exit code."""
        switches = [word for one in self._off for word in ("-c", one)]
        argv = ["git", "--no-pager", *switches, "-C", str(self.folder), *words]
        null = subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                argv, stdin=null, stderr=null, stdout=subprocess.PIPE, env=self._env
            )
        except OSError as error:  # no git here, or no such folder
            raise Silent(str(error)) from error
        with process:
            timer = Timer(max(0.0, self._deadline - time.monotonic()), process.kill)
            timer.start()
            try:
                assert process.stdout is not None
                data = process.stdout.read(most + 1)
                if len(data) > most:
                    process.kill()
                    return data[:most], True, 0
                return data, False, process.wait()
            finally:
                timer.cancel()


def _source(repository: Repository) -> SourceState:
    commit = repository.text("rev-parse", "--verify", "--quiet", "HEAD", missing="").strip()
    branch = repository.text("symbolic-ref", "--short", "--quiet", "HEAD", missing="").strip()
    notes = [] if commit else ["the repository has no commit yet"]
    patch, is_cut, code = repository.read((*_DIFF, *((commit, "--") if commit else ())), LIMIT)
    if code != 0:
        notes.append("git did not finish the diff in time")
    if is_cut:
        patch = patch[: patch.rfind(b"\n") + 1]
        notes.append(f"the difference is longer than {LIMIT} bytes; the rest is left out")
    untracked, is_more = _untracked(repository)
    if is_more:
        notes.append(f"more than {_MOST_NAMES} files are untracked; the rest is left out")
    facts = {
        "root": str(repository.folder),
        "commit": commit or None,
        "branch": branch or None,
        "dirty": bool(patch or untracked),
        "remote": without_secrets(repository.text("config", "remote.origin.url", missing="")),
        "diff": _digest(patch, is_cut) if patch else None,
        "untracked": untracked,
        "note": "; ".join(notes),
    }
    return SourceState(facts, patch)


def _untracked(repository: Repository) -> tuple[list[str], bool]:
    words = ("ls-files", "--others", "--exclude-standard", "--directory", "-z")
    data, is_cut, _ = repository.read(words, LIMIT)
    names = [os.fsdecode(name) for name in data.split(b"\0")[: -1 if is_cut else None] if name]
    shown = [name.encode(errors="replace").decode() for name in names[:_MOST_NAMES]]
    return shown, is_cut or len(names) > _MOST_NAMES


def _digest(patch: bytes, is_cut: bool) -> dict[str, Any]:
    sha = hashlib.sha256(patch).hexdigest()
    return {"bytes": len(patch), "truncated": is_cut, "sha256": sha}


def without_secrets(url: str) -> str | None:
    """Return a remote's address without the user and password that may stand in it."""
    url = url.strip()
    if "://" not in url:
        return url or None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


@dataclass(frozen=True, slots=True)
class SubmittedSources:
    """The folder a job was submitted from, the state of its sources, whether it runs a copy."""

    cwd: str
    source: SourceState | None
    is_copied: bool

    @property
    def commit(self) -> str | None:
        return self.source.facts["commit"] if self.source else None

    @property
    def is_changed(self) -> bool:
        return bool(self.source and self.source.facts["dirty"])

    def is_as(self, source: SourceState) -> bool:
        """Tell whether sources are still as they were."""
        then = self.source.facts if self.source else {}
        return all(then.get(name) == source.facts[name] for name in ("commit", "diff"))


def keep(
    folder: Path, cwd: str, places: Sequence[Path], is_copied: bool, env: Mapping[str, str]
) -> None:
    """Store the state of the first of these places that is in a repository."""
    source = source_of(places, env)
    facts = {"cwd": cwd, "is_copied": is_copied, "git": source.facts if source else None}
    _write(folder / FILE, json.dumps(facts, indent=1).encode())
    if source and source.patch:
        _write(folder / PATCH, source.patch)


def kept(folder: Path) -> SubmittedSources | None:
    """Return what was stored; nothing where that is gone."""
    try:
        stored: dict[str, Any] = json.loads((folder / FILE).read_bytes())
        facts = stored["git"]
        patch = (folder / PATCH).read_bytes() if facts and facts["diff"] else b""
        source = SourceState(facts, patch) if facts else None
        return SubmittedSources(stored["cwd"], source, stored["is_copied"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _write(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE), "wb") as file:
        file.write(data)
