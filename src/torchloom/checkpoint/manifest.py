"""The manifest: what a checkpoint holds, and the proof that it is committed.

Nothing in one is trusted before `from_json` has accepted it: names follow the layout's
grammar, counts have bounds, every rank's shard is there once. Fields it does not know are a newer
version's and are ignored.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from torchloom.checkpoint.errors import BadManifest
from torchloom.checkpoint.layout import LARGEST, Draft, rank_of, shard_name
from torchloom.checkpoint.placement import ShardMap
from torchloom.checkpoint.trainer_files import TrainerFiles

FORMAT = 1
LARGEST_TEXT = 16 * 2**20  # bytes of a whole manifest
_LARGEST_SHARD = 2**53  # bytes; beyond it JSON readers round
_LONGEST = 256  # letters of a text
_MOST = 256  # entries of versions and metrics

_WORDS = ("job_id", "run_id", "strategy", "backend", "trigger", "created_at")
_COUNTS = ("step", "epoch", "world_size", "generation", "attempt", "knobs")
_FLAGS = ("optimizer_state", "rng_state")
_HASH = re.compile("blake3:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's file: its name, its bytes and their hash (`blake3:<64 hex digits>`)."""

    name: str
    size: int
    hash: str
    rank: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything one must know of a checkpoint before a byte of it is loaded.

    `step` is the number of steps applied: the state is the one before step `step` begins. `knobs`
    is the position in the knob log. Metrics that are not finite are left out when it is written.
    `trainer` is what the program's own trainer saved, if it owns the loop. `sharding` says where
    the parts of divided tensors are, if each rank holds only a part of the state.
    """

    job_id: str
    run_id: str
    step: int
    epoch: int
    world_size: int
    strategy: str
    backend: str
    shards: tuple[Shard, ...]
    optimizer_state: bool
    rng_state: bool
    generation: int
    attempt: int
    created_at: str
    knobs: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    trigger: str = ""
    trainer: TrainerFiles | None = None
    sharding: ShardMap | None = None

    @property
    def draft(self) -> Draft:
        """Return the draft this manifest commits."""
        return Draft(self.step, self.generation, self.attempt)

    @property
    def size(self) -> int:
        """Return the bytes of all shards and of the trainer's files."""
        of_trainer = self.trainer.size if self.trainer is not None else 0
        return sum(shard.size for shard in self.shards) + of_trainer

    def to_json(self) -> str:
        """Return the text that is committed."""
        fields = {name: getattr(self, name) for name in (*_WORDS, *_COUNTS, *_FLAGS)}
        finite = {key: value for key, value in self.metrics.items() if math.isfinite(value)}
        whole = {
            "format": FORMAT,
            **fields,
            "versions": dict(self.versions),
            "metrics": finite,
            "shards": [
                {"name": shard.name, "size": shard.size, "hash": shard.hash, "rank": shard.rank}
                for shard in self.shards
            ],
        }
        if self.trainer is not None:
            whole["trainer"] = self.trainer.to_dict()
        text = json.dumps(whole, indent=1, allow_nan=False)
        if self.sharding is not None:
            text = f'{text[:-2]},\n "sharding": {_rows(self.sharding)}\n}}'
        return text + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "Manifest":
        """Return the manifest in a text from anywhere, or raise BadManifest."""
        whole = _parsed(text)
        if not 1 <= _count(whole, "format") <= LARGEST:
            raise BadManifest("format must be at least 1")
        words = {name: _word(_got(whole, name), name) for name in _WORDS}
        counts = {name: _count(whole, name) for name in _COUNTS}
        flags = {name: _flag(whole, name) for name in _FLAGS}
        _check_time(words["created_at"])
        return cls(
            **words,  # type: ignore[arg-type]
            **counts,  # type: ignore[arg-type]
            **flags,  # type: ignore[arg-type]
            shards=_shards(_got(whole, "shards"), counts["world_size"]),
            versions={key: _word(value, key) for key, value in _table(whole, "versions")},
            metrics={key: _number(value, key) for key, value in _table(whole, "metrics")},
            trainer=TrainerFiles.from_dict(whole["trainer"]) if "trainer" in whole else None,
            sharding=(
                ShardMap.from_dict(whole["sharding"], counts["world_size"])
                if "sharding" in whole
                else None
            ),
        )


def _rows(sharding: ShardMap) -> str:
    """Return the places of divided tensors as JSON, each tensor on a line."""
    found = sharding.to_dict()
    lines = (f"   {json.dumps(name)}: {json.dumps(row)}" for name, row in found["tensors"].items())
    tensors = ",\n".join(lines)
    return f'{{\n  "mesh": {json.dumps(found["mesh"])},\n  "tensors": {{\n{tensors}\n  }}\n }}'


def _parsed(text: str | bytes) -> dict[str, Any]:
    if len(text) > LARGEST_TEXT:
        raise BadManifest(f"larger than {LARGEST_TEXT} bytes")
    try:
        text = text.decode() if isinstance(text, bytes) else text
        whole = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise BadManifest(f"not JSON: {error}") from None
    if not isinstance(whole, dict):
        raise BadManifest("not an object")
    return whole


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is not a number")


def _got(whole: Mapping[str, Any], name: str) -> Any:
    if name not in whole:
        raise BadManifest(f"{name} is missing")
    return whole[name]


def _word(value: Any, name: str) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST or not value.isprintable():
        raise BadManifest(f"{name[:80]!r} must be at most {_LONGEST} printable characters")
    return value


def _count(whole: Mapping[str, Any], name: str, most: int = LARGEST) -> int:
    value = _got(whole, name)
    if type(value) is not int or not 0 <= value <= most:
        raise BadManifest(f"{name} must be a count")
    return value


def _flag(whole: Mapping[str, Any], name: str) -> bool:
    value = _got(whole, name)
    if not isinstance(value, bool):
        raise BadManifest(f"{name} must be true or false")
    return value


def _table(whole: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    value = _got(whole, name)
    if not isinstance(value, dict) or len(value) > _MOST:
        raise BadManifest(f"{name} must be an object of at most {_MOST} entries")
    return [(_word(key, name), one) for key, one in value.items()]


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadManifest(f"{name[:80]!r} must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadManifest(f"{name[:80]!r} must be finite")
    return number


def _check_time(text: str) -> None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadManifest("created_at must be a time") from None
    if moment.utcoffset() != timedelta(0):
        raise BadManifest("created_at must be in UTC, with its offset")


def _shards(value: Any, world_size: int) -> tuple[Shard, ...]:
    if not isinstance(value, list) or not value or len(value) != world_size:
        raise BadManifest("shards must be one for each of world_size ranks")
    shards = tuple(map(_shard, value))
    if {shard.rank for shard in shards} != set(range(world_size)):
        raise BadManifest("shards must be one for each rank")
    return shards


def _shard(value: Any) -> Shard:
    if not isinstance(value, dict):
        raise BadManifest("a shard must be an object")
    name = _word(_got(value, "name"), "the name of a shard")
    rank = _count(value, "rank")
    if rank_of(name) != rank:
        raise BadManifest(f"the shard of rank {rank} must be named {shard_name(rank)}")
    content = _word(_got(value, "hash"), "the hash of a shard")
    if not _HASH.fullmatch(content):
        raise BadManifest(f"the hash of {name} must be blake3: and 64 hexadecimal digits")
    return Shard(name, _count(value, "size", _LARGEST_SHARD), content, rank)
