"""Checkpoints as they lie in a folder: manifests and hashes, read without our own reader."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from torchloom.cli.chaos.checking.case import object_in

_COMMITTED = re.compile(r"ckpt_step_([0-9]{5,19})")
_DRAFT = re.compile(r"ckpt_step_[0-9]{5,19}\.g[0-9]+-[0-9]+")
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Saved:
    """One committed checkpoint, as its name and its manifest say."""

    step: int
    path: Path
    generation: int | None
    problem: str = ""  # what makes it half, without a look at its content


def committed(root: str) -> list[Saved] | None:
    """Return the checkpoints of a root by step; nothing where it is not a folder of this host."""
    if "://" in root and not root.startswith("file://"):
        return None
    folder = Path(root.removeprefix("file://"))
    found = folder.iterdir() if folder.is_dir() else iter(())
    named = ((_COMMITTED.fullmatch(path.name), path) for path in found)
    saved = [_saved(int(match[1]), path) for match, path in named if match]
    there = [one for one in saved if not one.problem or one.path.exists()]  # else just removed
    return sorted(there, key=lambda one: one.step)


def drafts(root: str) -> list[Path]:
    """Return what was begun and never committed."""
    folder = Path(root.removeprefix("file://"))
    found = folder.iterdir() if folder.is_dir() else ()
    return [path for path in found if _DRAFT.fullmatch(path.name)]


def _saved(step: int, path: Path) -> Saved:
    told = object_in(path / "manifest.json")
    shards = told.get("shards")
    if not isinstance(shards, list) or not shards:
        return Saved(step, path, None, f"{path.name}: no manifest can be read")
    generation = told.get("generation")
    if told.get("step") != step or len(shards) != told.get("world_size"):
        return Saved(step, path, generation, f"{path.name}: its manifest is another's, or short")
    missing = [one["name"] for one in shards if not (path / one["name"]).is_file()]
    problem = f"{path.name}: {missing[0]} is missing" if missing else ""
    return Saved(step, path, generation, problem)


def damage(saved: Saved) -> str:
    """Read all of a checkpoint; return what is not as its manifest says."""
    if saved.problem:
        return saved.problem
    for shard in object_in(saved.path / "manifest.json").get("shards", ()):
        found = _differs(saved.path / shard["name"], shard)
        if found and saved.path.exists():  # else it has just been removed
            return f"{saved.path.name}: {found}"
    return ""


def _differs(path: Path, shard: dict[str, Any]) -> str:
    try:
        if path.stat().st_size != shard["size"]:
            return f"{path.name} has {path.stat().st_size} bytes, not {shard['size']}"
        return "" if _hash(path) == shard["hash"] else f"{path.name} has another hash"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"


def _hash(path: Path) -> str:
    content = blake3()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            content.update(block)
    return f"blake3:{content.hexdigest()}"
