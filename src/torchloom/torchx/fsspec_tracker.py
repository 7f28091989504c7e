"""A tracker that keeps files below a folder, in TorchX's layout; fsspec serves other places.

Each run has a folder, named by its handle in base 32, with `metadata`, `artifacts`, `sources` and
`descendants`. Files are only added, so that many ranks can write at once.
"""

import base64
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from torchloom.errors import UserError, shorten
from torchloom.torchx.tracker import (
    BadTrackerConfig,
    Lineage,
    TrackerArtifact,
    TrackerBase,
    TrackerSource,
)

_LOCAL = ("file", "local")


class LocalFiles:
    """This machine's files, with those methods of a file system of fsspec that are used here."""

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def mkdirs(self, path: str, exist_ok: bool = False) -> None:
        os.makedirs(path, exist_ok=exist_ok)

    def open(self, path: str, mode: str = "rb") -> IO[Any]:
        return open(path, mode)

    def listdir(self, path: str) -> list[dict[str, str]]:
        kinds = {True: "directory", False: "file"}
        return [{"name": e.path, "type": kinds[e.is_dir()]} for e in os.scandir(path)]


class FsspecTracker(TrackerBase):
    """Keeps facts about runs as files.

    Args:
        fs: A file system of fsspec, or `LocalFiles`.
        root_dir: An existing folder in it.
    """

    def __init__(self, fs: Any, root_dir: str) -> None:
        if not fs.exists(root_dir):
            raise BadTrackerConfig(f"tracker folder {root_dir!r} does not exist; make it first")
        self.fs = fs
        self._root = root_dir.rstrip("/") or "/"

    def __repr__(self) -> str:
        return f"<FsspecTracker: root_path={self._root}>"

    def add_artifact(
        self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None
    ) -> None:
        self._store(run_id, "artifacts", {"name": name, "path": path, "metadata": metadata})

    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        found = {}
        for entry in self._stored(run_id, "artifacts"):
            each = TrackerArtifact(str(entry["name"]), str(entry["path"]), entry["metadata"])
            found[each.name] = each
        return found

    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        self._store(run_id, "metadata", {"metadata": kwargs})

    def metadata(self, run_id: str) -> Mapping[str, object]:
        found: dict[str, object] = {}
        for entry in self._stored(run_id, "metadata"):
            found |= entry["metadata"]
        return found

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        self._link(run_id, "sources", source_id, artifact_name or "")
        if self.fs.exists(self._folder(source_id)):
            self._link(source_id, "descendants", run_id, artifact_name or "")

    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        found = []
        for file in self._files(self._folder(run_id, "sources")):
            with self.fs.open(file, "r") as lines:
                names = [line.strip() for line in lines if line.strip()]
            source = decode(os.path.basename(file))
            found += [TrackerSource(source, name) for name in names or [None]]
        return [each for each in found if artifact_name in (None, each.artifact_name)]

    def lineage(self, run_id: str) -> Lineage:
        below = self._files(self._folder(run_id, "descendants"))
        names = [decode(os.path.basename(file)) for file in below]
        return Lineage(list(self.sources(run_id)), names)

    def run_ids(self, **kwargs: str) -> Iterable[str]:
        parent = kwargs.get("parent_run_id")
        folders = [each for each in self.fs.listdir(self._root) if each["type"] == "directory"]
        names = sorted(os.path.basename(each["name"].rstrip("/")) for each in folders)
        return [
            decode(name)
            for name in names
            if not parent or self.fs.exists(f"{self._root}/{name}/sources/{encode(parent)}")
        ]

    def _folder(self, run_id: str, category: str = "") -> str:
        return f"{self._root}/{encode(run_id)}/{category}".rstrip("/")

    def _files(self, folder: str) -> list[str]:
        if not self.fs.exists(folder):
            return []
        return sorted(each["name"] for each in self.fs.listdir(folder))

    def _store(self, run_id: str, category: str, entry: Mapping[str, object]) -> None:
        folder = self._folder(run_id, category)
        self.fs.mkdirs(folder, exist_ok=True)
        with self.fs.open(f"{folder}/{time.time_ns()}", "w") as file:
            file.write(json.dumps(entry))

    def _stored(self, run_id: str, category: str) -> Iterator[dict[str, Any]]:
        """Yield the entries in the order in which they were stored."""
        for path in self._files(self._folder(run_id, category)):
            with self.fs.open(path, "r") as file:
                yield json.load(file)

    def _link(self, run_id: str, category: str, other: str, line: str) -> None:
        folder = self._folder(run_id, category)
        self.fs.mkdirs(folder, exist_ok=True)
        path = f"{folder}/{encode(other)}"
        if self.fs.exists(path):
            with self.fs.open(path, "r") as lines:
                if line.strip() in (each.strip() for each in lines):
                    return
        with self.fs.open(path, "a") as file:
            file.write(f"{line.strip()}\n")


def create(config_file: str | None) -> TrackerBase:
    """Return the tracker that a config file describes.

    The file has lines `KEY=VALUE`: `protocol` and `root_path`; the others are options of fsspec's
    file system, where a dot in a key makes a mapping.
    """
    config = read_config(config_file or "")
    lacking = [key for key in ("protocol", "root_path") if key not in config]
    if lacking:
        named = " and ".join(lacking)
        raise BadTrackerConfig(f"tracker config {config_file}: {named} missing; add a line KEY=...")
    protocol, root = config.pop("protocol"), config.pop("root_path")
    return FsspecTracker(_file_system(protocol, config), root)


def read_config(config_file: str) -> dict[str, Any]:
    """Return the pairs of a config file; lines that begin with # are comments."""
    try:
        text = Path(config_file.removeprefix("file://")).read_text()
    except OSError as error:
        remedy = "set `config` of the tracker to a file"
        problem = f"tracker config {shorten(config_file)!r} cannot be read: {error.strerror}"
        raise BadTrackerConfig(f"{problem}; {remedy}") from error
    found: dict[str, Any] = {}
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition("="))
        if key and value and not line.startswith("#"):
            _put(found, key, key.split("."), value)
    return found


def encode(run_id: str) -> str:
    """Return the name of a run's folder."""
    return base64.b32encode(run_id.encode()).decode()


def decode(name: str) -> str:
    """Return the run that a folder is named for."""
    return base64.b32decode(name).decode()


def _put(config: dict[str, Any], key: str, path: list[str], value: str) -> None:
    if not all(path):
        raise BadTrackerConfig(f"tracker config: key {key!r} begins or ends with a dot; remove it")
    *above, last = path
    for part in above:
        config = config.setdefault(part, {})
    config[last] = value


def _file_system(protocol: str, options: Mapping[str, Any]) -> Any:
    try:
        import fsspec  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        if protocol in _LOCAL:
            return LocalFiles()
        remedy = "install it, or use protocol=file"
        raise UserError(f"tracker protocol {protocol!r} needs fsspec; {remedy}") from error
    return fsspec.filesystem(protocol, **options)
