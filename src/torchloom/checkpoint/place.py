"""Where the checkpoints of a run are: a folder of its own, here or in a bucket."""

import re
from pathlib import Path, PurePosixPath

from torchloom.checkpoint.errors import BadRoot

_BUCKET = re.compile("[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PART = re.compile(r"[A-Za-z0-9!_.*'()=+@,~-]{1,255}")
_RUN = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


def root_of(base: str, run_id: str, runs_dir: Path) -> str:
    """Return the root of a run's checkpoints: an absolute path or an `s3://bucket/prefix`.

    Without a base (`""` or `"local"`) it is in the run's folder, else `BASE/ID/checkpoints`.
    """
    if not _RUN.fullmatch(run_id):
        raise BadRoot(f"not the id of a run: {run_id[:80]!r}")
    if base in ("", "local"):
        return str(runs_dir.absolute() / run_id / "checkpoints")
    if "://" in base:
        bucket, prefix = bucket_of(base)
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
