"""What every store of checkpoints does, and which one a root names."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from torchloom.checkpoint.errors import BadManifest, BadRoot
from torchloom.checkpoint.layout import Draft
from torchloom.checkpoint.manifest import LARGEST_TEXT, Manifest, Shard
from torchloom.errors import require_extra

_BUCKET = re.compile("[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PART = re.compile(r"[A-Za-z0-9!_.*'()=+@,~-]{1,255}")
_RUN = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
Pace = Callable[[], None]
OnRead = Callable[[int], None]  # called with a number of bytes


@dataclass(frozen=True, slots=True)
class Written:
    """What `write_shard` wrote: the manifest's size and hash of it."""

    size: int
    hash: str


class Storage(Protocol):
    """The checkpoints of one run. Calls may come from any process, thread and host that sees it."""

    root: str

    def write_shard(
        self, draft: Draft, name: str, buffers: Sequence[memoryview], pace: Pace | None = None
    ) -> Written:
        """Write one rank's bytes into a draft, hashed on the way; they are durable on return.

        `pace` is called between chunks. After a failure it may be called again.
        """
        ...

    def written(self, draft: Draft) -> set[str]:
        """Return the names of the shards that a draft has; a folder's may be being written."""
        ...

    def commit(self, draft: Draft, manifest: Manifest) -> str:
        """Make the draft the checkpoint of its step, all at once, and return its place.

        A repeated commit is fine. Raises Fenced, AlreadyCommitted, Incomplete, StoreUnavailable.
        """
        ...

    def fence(self, generation: int) -> None:
        """Refuse commits of generations older than this one from now on."""
        ...

    def committed(self) -> list[int]:
        """Return the steps that have a manifest, newest first."""
        ...

    def manifest(self, step: int) -> Manifest:
        """Return what is committed of a step; raises NotCommitted, BadManifest."""
        ...

    def place_of(self, step: int) -> str:
        """Return where the checkpoint of a step is, or would be."""
        ...

    def read_shard(self, step: int, shard: Shard, check: bool = True) -> memoryview:
        """Return the bytes of a shard, a private view or a copy, page-aligned and writable.

        Raises Damaged when the size, or with `check` the hash, is not the manifest's.
        """
        ...

    def verify(self, step: int, on_read: OnRead | None = None) -> None:
        """Read and hash everything of a step; raises Damaged, BadManifest, NotCommitted.

        `on_read` is called with the size of each part that was read, and may raise to end this.
        """
        ...

    def latest(self) -> int | None:
        """Return the newest step whose manifest can be read and whose shards have their sizes.

        A store that does not answer is StoreUnavailable, never an older step.
        """
        ...

    def remove(self, step: int) -> None:
        """Delete a checkpoint; it stops being one before any byte is deleted. Repeating is fine."""
        ...

    def set_aside(self, step: int) -> str:
        """Take a damaged checkpoint out of the way, keep it for inspection, return its place."""
        ...

    def clear_drafts(self, below: int) -> list[str]:
        """Delete what writers of older generations, and removals, left; return their names."""
        ...

    def discard(self, draft: Draft) -> None:
        """Delete one draft that will not be committed; one that is not there is fine."""
        ...

    def mark(self, nonce: str) -> None:
        """Leave a mark, by which other hosts check that they see the same store."""
        ...

    def sees(self, nonce: str) -> bool:
        """Tell whether the mark can be seen from here."""
        ...


def sealed(draft: Draft, manifest: Manifest) -> tuple[Manifest, bytes]:
    """Return the manifest as it will be read back, and its text; raise BadManifest before that.

    What could not be read again must not be committed.
    """
    if manifest.draft != draft:
        raise BadManifest(f"it is of {manifest.draft.name}, not of {draft.name}")
    text = manifest.to_json().encode()
    if len(text) > LARGEST_TEXT:
        raise BadManifest(f"larger than {LARGEST_TEXT} bytes")
    return Manifest.from_json(text), text


def open_storage(root: str, env: Mapping[str, str]) -> Storage:
    """Return the store at a root that `root_of` made; nothing is created or asked yet."""
    if root.startswith("s3://"):
        require_extra(f"the store {root}", "obstore", "s3")
        from torchloom.checkpoint.s3 import S3Storage

        return S3Storage.at(root, env)
    from torchloom.checkpoint.local import LocalStorage

    return LocalStorage(root)


def root_of(base: str, run_id: str, runs_dir: Path) -> str:
    """Return the root of a run's checkpoints: an absolute path or an `s3://bucket/prefix`.

    An S3 URL is refused where the client for it is not installed.
    Without a base (`""` or `"local"`) it is in the run's folder, else `BASE/ID/checkpoints`.
    """
    if not _RUN.fullmatch(run_id):
        raise BadRoot(f"not the id of a run: {run_id[:80]!r}")
    if base in ("", "local"):
        return str(runs_dir.absolute() / run_id / "checkpoints")
    if "://" in base:
        bucket, prefix = bucket_of(base)
        require_extra(f"saving to s3://{bucket}", "obstore", "s3", "save to a folder")
        return "/".join(part for part in (f"s3://{bucket}", prefix, run_id, "checkpoints") if part)
    return str(_folder(base) / run_id / "checkpoints")


def bucket_of(url: str) -> tuple[str, str]:
    """Return the bucket and the prefix of an S3 URL; the prefix has no slash at its ends."""
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    parts = [part for part in prefix.split("/") if part]
    if scheme != "s3" or not _BUCKET.fullmatch(bucket):
        raise BadRoot(f"not a place for checkpoints: {url[:200]!r}; write s3://bucket/prefix")
    if any(part in (".", "..") or not _PART.fullmatch(part) for part in parts):
        raise BadRoot(f"not a prefix of a bucket: {url[:200]!r}; use letters, digits and -_.")
    return bucket, "/".join(parts)


def _folder(base: str) -> PurePosixPath:
    folder = Path(base).expanduser() if base.startswith("~") else Path(base)
    if "\0" in base or not folder.is_absolute() or ".." in folder.parts:
        raise BadRoot(
            f"not a folder for checkpoints: {base[:200]!r}; give an absolute path without '..', "
            "or s3://bucket/prefix"
        )
    return PurePosixPath(folder)
