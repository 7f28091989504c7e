"""Names are made and read by one grammar; everything else is not a name."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom.checkpoint import (
    BadRoot,
    Draft,
    LocalStorage,
    draft_name,
    draft_of,
    folder_name,
    open_storage,
    root_of,
    shard_name,
    step_of,
)
from torchloom.checkpoint.layout import rank_of, writer_of

COUNTS = st.integers(0, 2**63 - 1)


def test_names_are_those_of_the_layout() -> None:
    assert folder_name(1000) == "ckpt_step_01000"
    assert folder_name(1_234_567) == "ckpt_step_1234567"
    assert draft_name(1000, 7, 2) == "ckpt_step_01000.g7-2"
    assert shard_name(3) == "worker_3.pt"


@given(COUNTS, COUNTS, COUNTS)
def test_names_are_read_as_they_were_made(step: int, generation: int, attempt: int) -> None:
    draft = Draft(step, generation, attempt)

    assert step_of(folder_name(step)) == step
    assert draft_of(draft.name) == writer_of(step, draft.writer) == draft
    assert rank_of(shard_name(step)) == step


@given(st.text(max_size=40) | st.from_regex(r"ckpt_step_[0-9]+(\.(bad|g[0-9]+-[0-9]+))?"))
def test_a_name_that_is_read_is_the_one_that_is_made(name: str) -> None:
    step, draft, rank = step_of(name), draft_of(name), rank_of(name)

    assert step is None or folder_name(step) == name
    assert draft is None or draft.name == name
    assert rank is None or shard_name(rank) == name


@pytest.mark.parametrize(
    "name",
    [
        "ckpt_step_1000",
        "ckpt_step_001000",
        "ckpt_step_01000.bad",
        "ckpt_step_01000.g7-2",
        "ckpt_step_01000\n",
        "ckpt_step_\u0660\u0661000",
        "ckpt_step_9999999999999999999",
        ".gone-ckpt_step_01000",
    ],
)
def test_what_is_not_committed_has_no_step(name: str) -> None:
    assert step_of(name) is None


def test_a_negative_count_has_no_name() -> None:
    for make in (folder_name, shard_name, lambda number: draft_name(1, number, 1)):
        with pytest.raises(ValueError, match="not a count"):
            make(-1)


def test_the_root_is_in_the_run_or_below_a_base() -> None:
    runs = Path("/home/u/.torchloom/runs")

    assert root_of("", "run-1", runs) == "/home/u/.torchloom/runs/run-1/checkpoints"
    assert root_of("local", "run-1", runs) == "/home/u/.torchloom/runs/run-1/checkpoints"
    assert root_of("/data/", "run-1", runs) == "/data/run-1/checkpoints"
    assert root_of("s3://bucket", "run-1", runs) == "s3://bucket/run-1/checkpoints"
    assert root_of("s3://bucket/a/b/", "run-1", runs) == "s3://bucket/a/b/run-1/checkpoints"


@pytest.mark.parametrize(
    "base",
    [
        "data",
        "/data/../etc",
        "/da\0ta",
        "s3://",
        "s3://B",
        "s3://bucket/../other",
        "s3://bucket/a b",
        "s3://bucket/a\nb",
        "gs://bucket/x",
        "http://127.0.0.1/x",
        "file:///etc",
    ],
)
def test_a_base_that_cannot_hold_checkpoints_is_refused(base: str) -> None:
    with pytest.raises(BadRoot):
        root_of(base, "run-1", Path("/runs"))


@pytest.mark.parametrize("run", ["", "..", ".", "a/b", "a b", "-x", "x" * 256])
def test_an_id_that_is_a_path_is_refused(run: str) -> None:
    with pytest.raises(BadRoot):
        root_of("", run, Path("/runs"))


def test_a_storage_is_opened_by_its_root() -> None:
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}

    assert isinstance(open_storage("/data/run-1/checkpoints", {}), LocalStorage)
    assert (
        open_storage("s3://bucket/run-1", keys).place_of(5) == "s3://bucket/run-1/ckpt_step_00005"
    )
    with pytest.raises(BadRoot):
        open_storage("relative/folder", {})
    with pytest.raises(BadRoot, match="AWS_ACCESS_KEY_ID"):
        open_storage("s3://bucket/x", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
