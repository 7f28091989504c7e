"""Pack an environment into one file: the same bytes for the same input, usable in any folder."""

import gzip
import hashlib
import io
import json
import mmap
import os
import re
import stat
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from torchloom.envs import relocate
from torchloom.errors import Failure, UserError, shorten

_NAMED = re.compile(r"^\s*(?:export )?VIRTUAL_ENV=(['\"]?)(/[^'\"$`\n]+)\1\s*$", re.MULTILINE)
# Python reads the two lines as one string; sh runs the interpreter beside the script.
_TRAMPOLINE = (
    b"#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'%s'%s \"$0\" \"$@\"\n' '''\n"
)
_LONG = re.compile(rb"#!/bin/sh\n'''exec' \"?([^\n\"]+?)\"? \"\$0\" \"\$@\"\n' '''\n")
_POSIX_HERE = """\
# Where is this file? bash and zsh know; other shells need `bin/loom-relocate` to be run once.
_loom_env='%s'
if [ -n "${BASH_VERSION:-}" ]; then
    eval '_loom_env="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"'
elif [ -n "${ZSH_VERSION:-}" ]; then
    eval '_loom_env="$(cd "$(dirname "${(%%):-%%x}")/.." && pwd)"'
fi
"""
_FISH_HERE = "set -l _loom_env (dirname (dirname (realpath (status --current-filename))))\n"
FORMAT = "loom-pack/1"
MANIFEST = ".loom-env.json"
RELOCATE = "bin/loom-relocate"
LEVEL = 1  # of gzip: twice as fast as the usual 6 for a twentieth more bytes
_SMALL = 2**22  # bytes of a file that may be rewritten
_SILENT = (".pyc", ".dist-info/RECORD", ".dist-info/direct_url.json")  # contain it, harmlessly


class NotAnEnvironment(UserError):
    """A folder without an interpreter of its own."""

    code = "not_an_environment"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{shorten(str(path))} is not a Python environment: {why}; "
            "name a venv or conda folder, such as .venv or $CONDA_PREFIX"
        )


@dataclass(frozen=True, slots=True)
class Prefix:
    """An environment: where it is, and whose interpreter it runs."""

    path: Path
    kind: str  # venv or conda
    named: str  # the path its own files call it by: it may have been moved, or be behind a link
    base: str = ""  # the interpreter outside the folder that a venv needs on every host


def find_prefix(path: Path) -> Prefix:
    """Return what kind of environment a folder is; anything else is an error."""
    path = path.expanduser().absolute()
    if not path.is_dir():
        raise NotAnEnvironment(path, "no such folder")
    if (path / "conda-meta").is_dir():
        return Prefix(path, "conda", str(path))
    if not (path / "pyvenv.cfg").is_file():
        raise NotAnEnvironment(path, "neither pyvenv.cfg nor conda-meta is in it")
    python = path / "bin/python"
    if not python.exists():
        raise NotAnEnvironment(path, "its bin/python is missing or a broken link")
    target = python.resolve()
    base = "" if target.is_relative_to(path.resolve()) else str(target)
    return Prefix(path, "venv", _own_name(path), base)


def _own_name(path: Path) -> str:
    """Return the path that a venv's activate script has; else the one it is found at."""
    try:
        text = (path / "bin/activate").read_text(errors="replace")
    except OSError:
        return str(path)
    match = _NAMED.search(text)
    return match[2] if match else str(path)


def own_prefix(env: Mapping[str, str]) -> Path:
    """Return the active environment: the shell's, else the one this command is in."""
    named = env.get("VIRTUAL_ENV") or env.get("CONDA_PREFIX")
    if named:
        return Path(named)
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix)
    raise UserError("no environment is active; name one: `loom env pack .venv -o env.tar.gz`")


def rewrite(name: str, data: bytes, prefix: str) -> bytes:
    """Return a file's content for any folder; `name` is its path below the prefix."""
    old = os.fsencode(prefix)
    folder, _, last = name.rpartition("/")
    if name == "pyvenv.cfg":
        return _config(data)
    if last.endswith((".pth", ".egg-link")):
        return _path_file(folder, data, prefix)
    if folder == "bin" and old in data:
        if last == "activate":
            return _variable(data, prefix, _POSIX_HERE % prefix.replace("'", "'\\''"))
        if last == "activate.fish":
            return _variable(data, prefix, _FISH_HERE)
        return _script(data, old)
    return data


def _script(data: bytes, old: bytes) -> bytes:
    """Give a Python script a first line that finds the interpreter beside it."""
    if match := _LONG.match(data):
        words, rest = match[1], data[match.end() :]
    elif data.startswith(b"#!"):
        line, _, rest = data.partition(b"\n")
        words = line[2:].strip()
    else:
        return data
    path, space, flags = words.partition(b" ") if b" " not in old else (words, b"", b"")
    interpreter = path.rpartition(b"/")[2]
    if path != old + b"/bin/" + interpreter or b"python" not in interpreter:
        return data
    return _TRAMPOLINE % (interpreter, space + flags) + rest


def _variable(data: bytes, prefix: str, here: str) -> bytes:
    """Put a variable in the place of the folder's name, and compute it at the top."""
    word = re.escape(os.fsencode(prefix))
    pattern = re.compile(rb"(?<![^\s=('\"])(['\"]?)" + word + rb"\1(?=[\s;)]|$)", re.MULTILINE)
    changed, count = pattern.subn(b'"$_loom_env"', data)
    return os.fsencode(here) + changed if count else data


def _config(data: bytes) -> bytes:
    """Drop the command that made the venv; nothing reads it."""
    lines = data.splitlines(keepends=True)
    return b"".join(line for line in lines if line.partition(b"=")[0].strip() != b"command")


def _path_file(folder: str, data: bytes, prefix: str) -> bytes:
    """Make paths inside the environment relative to their file, as `site` reads them."""
    lines = []
    for line in data.splitlines(keepends=True):
        text = os.fsdecode(line.strip())
        inside = text == prefix or text.startswith(f"{prefix}/")
        end = line[len(line.rstrip(b"\r\n")) :]
        short = os.path.relpath(text, f"{prefix}/{folder}") if inside else ""
        lines.append(os.fsencode(short) + end if inside else line)
    return b"".join(lines)


Tell = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class PackedEnv:
    """What was written."""

    path: Path
    sha256: str
    size: int
    files: int
    notes: tuple[str, ...]


def pack(prefix: Prefix, out: Path, tell: Tell = lambda done, total: None) -> PackedEnv:
    """Write the archive under another name first: a reader never sees half of it."""
    if not out.name.endswith((".tar.gz", ".tgz", ".tar")):
        raise UserError(f"-o {out}: the name must end in .tar.gz, .tgz or .tar")
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            packer = _Packer(prefix, skip={partial.absolute(), out.absolute()}, tell=tell)
            digest = _Digest(file)
            packer.write(digest, compress=not out.name.endswith(".tar"))
        partial.replace(out)
    except OSError as error:
        where = error.filename or out
        raise Failure(f"cannot pack: {where}: {error.strerror or error}; fix that first") from error
    finally:
        partial.unlink(missing_ok=True)
    return PackedEnv(out, digest.sha.hexdigest(), digest.size, packer.files, packer.notes())


class _Digest(io.RawIOBase):
    """A file that hashes what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.sha.update(data)
        self.size += len(data)
        return self._file.write(data)


@dataclass
class _Packer:
    """One archive in the making."""

    prefix: Prefix
    skip: set[Path]
    tell: Tell
    files: int = 0
    text: list[str] = field(default_factory=list)
    binary: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def write(self, file: _Digest, compress: bool) -> None:
        if compress:
            with gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as packed:
                self._write_tar(packed)
        else:
            self._write_tar(file)

    def notes(self) -> tuple[str, ...]:
        """Return what the hosts must have besides."""
        base = f"every host needs {self.prefix.base}" if self.prefix.base else ""
        away = f"not packed, outside the folder: {', '.join(self.outside)}" if self.outside else ""
        return tuple(text for text in (base, away) if text)

    def _write_tar(self, file: gzip.GzipFile | _Digest) -> None:
        paths = [path for path in _walk(self.prefix.path) if path not in self.skip]
        total, done = sum(path.lstat().st_size for path in paths), 0
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in paths:
                self._add(tar, path)
                done += path.lstat().st_size
                self.tell(done, total)
            self._add_own(tar)

    def _add(self, tar: tarfile.TarFile, path: Path) -> None:
        name, status = path.relative_to(self.prefix.path).as_posix(), path.lstat()
        if name in (MANIFEST, RELOCATE, ".loom-hash"):
            return  # of the archive it came in; this one gets its own
        info = _info(name, status.st_mode, int(status.st_mtime))
        if path.is_symlink():
            info.type, info.linkname = tarfile.SYMTYPE, self._link(path)
            tar.addfile(info)
        elif path.is_dir():
            info.type = tarfile.DIRTYPE
            tar.addfile(info)
        elif stat.S_ISREG(status.st_mode):
            self.files += 1
            with open(path, "rb") as file:
                self._add_file(tar, info, file, status.st_size)

    def _add_file(
        self, tar: tarfile.TarFile, info: tarfile.TarInfo, file: IO[bytes], size: int
    ) -> None:
        old = os.fsencode(self.prefix.named)
        if size > _SMALL:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                self._note(info.name, data.find(old) >= 0, data.find(b"\0", 0, 8192) >= 0)
            info.size = size
            tar.addfile(info, file)
            return
        before = file.read()
        content = rewrite(info.name, before, self.prefix.named)
        self._note(info.name, old in content, b"\0" in content[:8192])
        if info.name.endswith((".pth", ".egg-link")):
            self._note_outside(before)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))

    def _note(self, name: str, has_prefix: bool, is_binary: bool) -> None:
        if has_prefix and not name.endswith(_SILENT):
            (self.binary if is_binary else self.text).append(name)

    def _note_outside(self, data: bytes) -> None:
        for line in os.fsdecode(data).splitlines():
            if line.startswith("/") and not Path(line).is_relative_to(self.prefix.named):
                self.outside.append(line)

    def _link(self, path: Path) -> str:
        """Return where a link leads; one into the environment is made relative."""
        target = os.readlink(path)
        for root in (self.prefix.named, str(self.prefix.path)):
            if target.startswith(f"{root}/"):
                return os.path.relpath(self.prefix.path / target[len(root) + 1 :], path.parent)
        return target

    def _add_own(self, tar: tarfile.TarFile) -> None:
        script = Path(relocate.__file__).read_bytes().partition(b"\n")[2]
        head = b"#!" + os.fsencode(self.prefix.named) + b"/bin/python\n"
        script = rewrite(RELOCATE, head + script, self.prefix.named)
        facts = {
            "format": FORMAT,
            "kind": self.prefix.kind,
            "prefix": self.prefix.named,
            "base": self.prefix.base,
            "text": self.text,
            "binary": self.binary,
        }
        manifest = json.dumps(facts, indent=1).encode() + b"\n"
        for name, data, mode in ((RELOCATE, script, 0o755), (MANIFEST, manifest, 0o644)):
            info = _info(name, mode, 0)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def _walk(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder in an order that depends on names alone."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        yield Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))


def _info(name: str, mode: int, mtime: int) -> tarfile.TarInfo:
    """Return a header without an owner (the user who unpacks it); `.pyc` files need the time."""
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = stat.S_IMODE(mode) & 0o755, mtime
    return info
