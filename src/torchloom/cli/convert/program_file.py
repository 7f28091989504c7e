"""Read a program's file, and replace it in one step, so that no reader sees half of it."""

import contextlib
import io
import os
import secrets
import stat
import tokenize
from dataclasses import dataclass
from pathlib import Path

from torchloom.errors import Failure, NotFound, UserError

_LARGEST = 5_000_000  # bytes
_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH  # without these root could write, too


class NotAProgram(UserError):
    """The path is not a text file with Python in it."""

    code = "not_a_program"


class NotReplaced(Failure):
    """The file cannot be replaced, or has changed since it was read."""

    code = "not_replaced"


@dataclass(frozen=True, slots=True)
class ProgramFile:
    """The text of a program as it was read, and how its bytes are encoded."""

    path: Path
    data: bytes
    text: str
    encoding: str

    @classmethod
    def read(cls, path: Path) -> "ProgramFile":
        """Read a file; its encoding is the one that Python would use."""
        if not path.exists():
            known = [each.name for each in path.absolute().parent.glob("*.py")]
            raise NotFound("file", str(path), known)
        if not path.is_file():
            raise NotAProgram(f"{path} is not a file: name the program that trains")
        data = path.read_bytes()
        if len(data) > _LARGEST:
            raise NotAProgram(f"{path} has {len(data)} bytes: name the program that trains")
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            return cls(path, data, data.decode(encoding), encoding)
        except (SyntaxError, UnicodeDecodeError) as error:
            raise NotAProgram(f"{path} is not a text file: {error}") from error

    def replace(self, text: str) -> None:
        """Write the new text beside the file, then rename it: mode and links stay.

        Raises NotReplaced if the file has changed meanwhile, or may not be written.
        """
        target = self.path.resolve()
        before = target.stat()
        if not before.st_mode & _WRITABLE or not os.access(target, os.W_OK):
            raise NotReplaced(f"{self.path} is read-only: give yourself write access to it")
        partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(file, "wb") as opened:
                opened.write(text.encode(self.encoding))
                opened.flush()
                with contextlib.suppress(PermissionError):  # another's file in a shared folder
                    os.fchown(opened.fileno(), before.st_uid, before.st_gid)
                os.fchmod(opened.fileno(), stat.S_IMODE(before.st_mode))
                os.fsync(opened.fileno())
            if target.read_bytes() != self.data:
                raise NotReplaced(f"{self.path} was changed while it was converted: do it again")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
