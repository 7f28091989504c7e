"""Copy one file, as `python -m torchloom.components.copy_file --src A --dst B`."""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, cast
from urllib.parse import unquote, urlsplit

from torchloom.errors import Failure, LoomError


class CopyFailed(Failure):
    """The file could not be read or written."""

    code = "copy_failed"


def copy_file(source: str, target: str) -> None:
    """Copy source to target; each is a path, a file:// URL, or a URL that fsspec can open."""
    try:
        with _open(source, "rb") as reader, _open(target, "wb") as writer:
            shutil.copyfileobj(reader, writer)
    except OSError as error:
        raise CopyFailed(f"cannot copy {source} to {target}: {error}") from error


def _open(place: str, mode: str) -> IO[bytes]:
    path = _local_path(place)
    if path is None:
        return _open_url(place, mode)
    if mode == "wb":
        path.parent.mkdir(parents=True, exist_ok=True)
    return cast(IO[bytes], path.open(mode))


def _local_path(place: str) -> Path | None:
    if "://" not in place:
        return Path(place)
    parts = urlsplit(place)
    if parts.scheme != "file":
        return None
    if parts.netloc not in {"", "localhost"}:
        raise CopyFailed(f"{place} is a file on another host; write file:///path")
    return Path(unquote(parts.path))


def _open_url(place: str, mode: str) -> IO[bytes]:
    try:
        import fsspec  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise CopyFailed(f"{place} needs fsspec; install it, or use a local path") from error
    try:
        return cast(IO[bytes], fsspec.open(place, mode).open())
    except (ImportError, ValueError) as error:  # no driver for the protocol
        raise CopyFailed(f"fsspec cannot open {place}: {error}") from error


def main(words: Sequence[str] | None = None) -> int:
    """Copy what the words name; return the exit code."""
    parser = argparse.ArgumentParser(prog="copy_file", description="Copy one file.")
    parser.add_argument("--src", required=True, help="path or URL to read")
    parser.add_argument("--dst", required=True, help="path or URL to write")
    given = parser.parse_args(words)
    try:
        copy_file(given.src, given.dst)
    except LoomError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
