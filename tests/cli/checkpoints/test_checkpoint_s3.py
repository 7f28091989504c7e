"""`loom checkpoint` and a store in a bucket: the same words, whatever keeps the bytes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.launch.records.folder import RunFolder

from ...harness.s3_server import S3Server, running_s3
from ..test_json import problems
from .stored import Captured, commit, said

pytestmark = [pytest.mark.process, pytest.mark.needs("s3")]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def root(
    ended: Callable[..., Any], bucket: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> str:
    """Have a job with three checkpoints in a bucket; give their root."""
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    ended("train-1", ranks=2)
    root = bucket.url(f"{tmp_path.name}/train-1/checkpoints")
    status = RunFolder.named("train-1").path / "status.json"
    status.write_text(json.dumps({**json.loads(status.read_text()), "checkpoints": root}))
    for step in (10, 20, 30):
        commit(root, step, env=bucket.env)
    return root


def test_what_is_in_a_bucket_is_listed_checked_and_removed(root: str, capsys: Captured) -> None:
    listed = said(capsys, "ls", "train-1", "--json")
    whole = said(capsys, "verify", "train-1", "--all")
    refused = said(capsys, "rm", "train-1", "30", "-y")
    gone = said(capsys, "rm", "train-1", "10", "20", "-y")
    left = said(capsys, "ls", "train-1", "--json")

    rows = json.loads(listed[1])
    assert problems("checkpoint-ls", rows) == []
    assert [(one["step"], one["state"], one["bytes"]) for one in rows] == [
        (30, "committed", 6),
        (20, "committed", 6),
        (10, "committed", 6),
    ]
    assert rows[0]["place"] == f"{root}/ckpt_step_00030"
    assert (whole[0], len(whole[1].splitlines())) == (0, 3)
    assert (refused[0], gone[0]) == (2, 0)
    assert [one["step"] for one in json.loads(left[1])] == [30]


def test_a_bucket_that_does_not_answer_is_said_and_nothing_is_listed(
    root: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")

    code, out, err = said(capsys, "ls", "train-1")

    assert (code, out) == (1, "")
    assert f"the checkpoint store {root} is unavailable" in err
