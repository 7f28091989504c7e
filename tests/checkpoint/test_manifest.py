"""A manifest comes from anywhere: it is read strictly, or not at all."""

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.checkpoint import BadManifest, Manifest, Shard
from torchloom.checkpoint.manifest import LARGEST_TEXT

from .witness import plain_manifest

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=256)
COUNTS = st.integers(0, 2**63 - 1)
TEXTS = st.dictionaries(WORDS, WORDS, max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Draw a manifest that a run could commit."""
    world = draw(st.integers(1, 4))
    digests = st.text("0123456789abcdef", min_size=64, max_size=64)
    shards = tuple(
        Shard(f"worker_{rank}.pt", draw(st.integers(0, 2**53)), f"blake3:{draw(digests)}", rank)
        for rank in range(world)
    )
    words = {name: draw(WORDS) for name in ("job_id", "run_id", "strategy", "backend", "trigger")}
    counts = {name: draw(COUNTS) for name in ("step", "epoch", "generation", "attempt", "knobs")}
    return Manifest(
        **words,
        **counts,
        world_size=world,
        shards=shards,
        optimizer_state=draw(st.booleans()),
        rng_state=draw(st.booleans()),
        versions=draw(TEXTS),
        metrics=draw(st.dictionaries(WORDS, st.floats(allow_nan=False, allow_infinity=False))),
        created_at=draw(st.sampled_from(["2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00.5Z"])),
    )


@given(manifests())
def test_a_manifest_is_read_as_it_was_written(manifest: Manifest) -> None:
    text = manifest.to_json()

    assert Manifest.from_json(text) == Manifest.from_json(text.encode()) == manifest


def test_plain_json_is_read() -> None:
    manifest = Manifest.from_json(json.dumps(plain_manifest(1000, 7, 2)))

    assert (manifest.draft.name, manifest.size) == ("ckpt_step_01000.g7-2", 45_057)
    assert manifest.shards[1].name == "worker_1.pt"


def test_fields_of_a_newer_version_are_ignored() -> None:
    whole = plain_manifest(1000)
    newer = {**whole, "format": 2, "new": [1], "shards": [{**s, "x": 1} for s in whole["shards"]]}

    assert Manifest.from_json(json.dumps(newer)) == Manifest.from_json(json.dumps(whole))


def test_metrics_that_are_not_finite_are_left_out() -> None:
    manifest = Manifest.from_json(json.dumps(plain_manifest(1000)))
    odd = dataclasses.replace(manifest, metrics={"loss": math.nan, "norm": math.inf, "lr": 0.5})

    assert Manifest.from_json(odd.to_json()).metrics == {"lr": 0.5}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", 0),
        ("job_id", None),
        ("job_id", "a\nb"),
        ("run_id", "x" * 257),
        ("backend", "\ud800"),
        ("step", -1),
        ("step", 1.0),
        ("step", True),
        ("step", "1000"),
        ("step", 2**63),
        ("world_size", 0),
        ("world_size", 3),
        ("optimizer_state", 1),
        ("created_at", "2026-01-01T00:00:00"),
        ("created_at", "2026-01-01T00:00:00+01:00"),
        ("created_at", "yesterday"),
        ("metrics", {"loss": "low"}),
        ("metrics", {"loss": True}),
        ("metrics", {"loss": 10**400}),
        ("metrics", []),
        ("versions", {"torch": 2}),
        ("versions", {str(number): "1" for number in range(257)}),
        ("shards", []),
        ("shards", {}),
        ("shards", [1, 2]),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(BadManifest):
        Manifest.from_json(json.dumps({**plain_manifest(1000), field: value}))


@pytest.mark.parametrize("field", list(plain_manifest(1)))
def test_a_missing_field_is_named(field: str) -> None:
    whole = plain_manifest(1000)
    del whole[field]

    with pytest.raises(BadManifest, match=f"{field} is missing"):
        Manifest.from_json(json.dumps(whole))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "../../etc/passwd"),
        ("name", "/etc/passwd"),
        ("name", "worker_0.pt\0"),
        ("name", "worker_0.pt/"),
        ("name", "worker_00.pt"),
        ("name", "worker_1.pt"),
        ("name", "worker_\u0660.pt"),
        ("name", "manifest.json"),
        ("name", ".."),
        ("name", ""),
        ("name", 5),
        ("size", -1),
        ("size", 2**53 + 1),
        ("size", 4096.0),
        ("hash", "blake3:"),
        ("hash", "sha256:" + "0" * 64),
        ("hash", "blake3:" + "G" * 64),
        ("hash", "blake3:" + "0" * 64 + "\n"),
        ("rank", 1),
        ("rank", -1),
        ("rank", "0"),
    ],
)
def test_a_shard_cannot_be_elsewhere_or_odd(field: str, value: Any) -> None:
    whole = plain_manifest(1000)
    whole["shards"][0][field] = value

    with pytest.raises(BadManifest):
        Manifest.from_json(json.dumps(whole))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        b"\xff\xfe",
        '{"format": 1, "format": 1}',
        json.dumps(plain_manifest(1000)).replace("0.5", "NaN"),
        json.dumps(plain_manifest(1000)).replace("0.5", "1e999"),
        json.dumps(plain_manifest(1000)).replace("0.5", "9" * 5000),
        "[" * 100_000,
        " " * (LARGEST_TEXT + 1),
    ],
)
def test_what_is_no_manifest_is_said_to_be_none(text: str | bytes) -> None:
    with pytest.raises(BadManifest):
        Manifest.from_json(text)


@settings(max_examples=300)
@given(st.binary(max_size=400) | st.text(max_size=400))
def test_no_text_does_anything_else(text: str | bytes) -> None:
    with pytest.raises(BadManifest):
        Manifest.from_json(text)


@settings(max_examples=300)
@given(st.sampled_from(list(plain_manifest(1))), JSON)
def test_no_value_of_a_field_does_anything_else(field: str, value: Any) -> None:
    text = json.dumps({**plain_manifest(1000), field: value})

    try:
        read = Manifest.from_json(text)
    except BadManifest:
        return
    assert Manifest.from_json(read.to_json()) == read
