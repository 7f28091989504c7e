"""What is saved: manifest, layout, commit, and the stores that keep it; bytes, no torch."""

TYPE_CHECKING = False  # a run without checkpoints must not pay for any of this
if TYPE_CHECKING:
    from typing import Any

    from torchloom.checkpoint.errors import (
        AlreadyCommitted,
        BadManifest,
        BadRoot,
        CheckpointError,
        Damaged,
        Fenced,
        Incomplete,
        NotCommitted,
        StoreUnavailable,
    )
    from torchloom.checkpoint.layout import (
        MANIFEST,
        Draft,
        draft_name,
        draft_of,
        folder_name,
        shard_name,
        step_of,
    )
    from torchloom.checkpoint.local import LocalStorage
    from torchloom.checkpoint.manifest import Manifest, Shard
    from torchloom.checkpoint.placement import Box, ShardMap, TensorPlace
    from torchloom.checkpoint.s3 import S3Storage
    from torchloom.checkpoint.storage import Storage, open_storage, root_of
    from torchloom.checkpoint.trainer_files import NotHashed, TrainerFile, TrainerFiles, survey

_HOMES = {
    "errors": (
        "AlreadyCommitted BadManifest BadRoot CheckpointError Damaged Fenced Incomplete "
        "NotCommitted StoreUnavailable"
    ),
    "layout": "MANIFEST Draft draft_name draft_of folder_name shard_name step_of",
    "local": "LocalStorage",
    "manifest": "Manifest Shard",
    "placement": "Box ShardMap TensorPlace",
    "s3": "S3Storage",
    "storage": "Storage open_storage root_of",
    "trainer_files": "NotHashed TrainerFile TrainerFiles survey",
}

__all__ = [
    "Draft",
    "Manifest",
    "Shard",
    "Box",
    "ShardMap",
    "TensorPlace",
    "Storage",
    "LocalStorage",
    "S3Storage",
    "open_storage",
    "root_of",
    "MANIFEST",
    "folder_name",
    "draft_name",
    "draft_of",
    "shard_name",
    "step_of",
    "CheckpointError",
    "AlreadyCommitted",
    "BadManifest",
    "BadRoot",
    "Damaged",
    "Fenced",
    "Incomplete",
    "NotCommitted",
    "StoreUnavailable",
    "NotHashed",
    "TrainerFile",
    "TrainerFiles",
    "survey",
]


def __getattr__(name: str) -> "Any":
    """Import what is asked for, when it is asked for."""
    import importlib

    for home, names in _HOMES.items():
        if name in names.split():
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
