"""Pack an environment into one file: the same bytes for the same input, at home in any folder."""

import gzip
import hashlib
import io
import json
import mmap
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from torchloom.errors import Failure, UserError
from torchloom.launch.envs import relocate
from torchloom.launch.envs.movable import rewrite
from torchloom.launch.envs.prefix import Prefix

FORMAT = "loom-pack/1"
MANIFEST = ".loom-env.json"
RELOCATE = "bin/loom-relocate"
LEVEL = 1  # of gzip: twice as fast as the usual 6 for a twentieth more bytes
_SMALL = 2**22  # bytes of a file that may be rewritten
_SILENT = (".pyc", ".dist-info/RECORD", ".dist-info/direct_url.json")  # name it, without harm

Tell = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class Packed:
    """What was written."""

    path: Path
    sha256: str
    size: int
    files: int
    notes: tuple[str, ...]


def pack(prefix: Prefix, out: Path, tell: Tell = lambda done, total: None) -> Packed:
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
        raise Failure(f"cannot pack: {where}: {error.strerror or error}; mend it first") from error
    finally:
        partial.unlink(missing_ok=True)
    return Packed(out, digest.sha.hexdigest(), digest.size, packer.files, packer.notes())


class _Digest(io.RawIOBase):
    """A file that knows the hash of what was written to it."""

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
    """Return a header without an owner: whoever unpacks it is one. Times stay, `.pyc` need them."""
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = stat.S_IMODE(mode) & 0o755, mtime
    return info
