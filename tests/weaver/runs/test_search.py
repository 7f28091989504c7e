"""Runs are listed, searched, shown and compared by a reader that only has the database."""

from pathlib import Path
from typing import Any

import pytest

from torchloom.errors import NotFound
from torchloom.messages.plane import VERSION, Head, Metrics
from torchloom.weaver.runs.comparison import BadComparison, compared
from torchloom.weaver.runs.search import (
    BadCondition,
    BadOrder,
    BadRunCursor,
    RunSearch,
    diff,
    listed,
    shown,
)
from torchloom.weaver.store import NumberedBatch, PlaneStore
from torchloom.weaver.store.rows import (
    CommandRow,
    Fact,
    JobRow,
    RankProcessRow,
    RunRow,
    SubmissionRow,
)

RECORD = {
    "argv": ["python", "train.py"],
    "git": {"commit": "abc123", "branch": "main", "dirty": False, "diff": None},
    "packages": {"torch": "2.5", "zope.interface": "7"},
    "python": "3.11.7",
    "torch": "2.5",
    "hardware": {"host": "a", "cpu": "x", "cores": 2, "memory_mb": 1, "devices": []},
    "env": {"names": ["A"], "values": {"OMP_NUM_THREADS": "1"}},
    "world_size": 2,
    "spec": None,
}


def ended(name: str, made: float, loss: float, **brief: Any) -> list[Any]:
    metrics = {"loss": {"last": loss, "best": loss / 2, "best_step": 3}}
    sums = {"steps": 10, "samples": None, "wall_seconds": 5.0, "restarts": 0, "faults": []}
    job = JobRow(
        name,
        name=name.rpartition("-")[0],
        owner="ann",
        state="COMPLETED",
        run_id=name,
        attempt=1,
        created_at=made,
        started_at=made,
        ended_at=made + 5,
        facts={"summary": {**sums, "metrics": metrics}, "world_size": 2},
        step=10,
    )
    config = {"project": "toys", "commit": "abc123", "branch": "main", "dirty": False, **brief}
    return [job, RunRow(name, name, job.name, config, made), Fact(f"experiment/{name}", RECORD)]


@pytest.fixture
def full(store: PlaneStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlaneStore:
    """Give a store with three runs that have ended and one that runs."""
    monkeypatch.setenv("LOOM_HOME", str(tmp_path / "home"))
    running = JobRow("gpt-4", "gpt", "bob", run_id="gpt-4", attempt=1, created_at=40.0)
    store.state.put(
        *ended("mnist-1", 10.0, 0.5, tags=["base"], group="sweep"),
        *ended("mnist-2", 20.0, 0.25, project="other", commit="def456", dirty=True),
        *ended("cnn-3", 30.0, 0.9),
        running,
    )
    head = Head(VERSION, "gpt-4", 0, 0, "life")
    ingest = store.ingest()
    ingest.write([NumberedBatch(head, 1, [Metrics(head, ("loss",), ((1, 41.0, 0.1),))], 0, 0)])
    ingest.close()
    return store


def found(store: PlaneStore, **words: Any) -> list[str]:
    return [one["run_id"] for one in listed(store, RunSearch(**words))["items"]]


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        ({}, ["gpt-4", "cnn-3", "mnist-2", "mnist-1"]),
        ({"text": "MNIST"}, ["mnist-2", "mnist-1"]),
        ({"text": "base"}, ["mnist-1"]),
        ({"text": "toys cnn"}, ["cnn-3"]),
        ({"text": "def4"}, ["mnist-2"]),
        ({"text": "running"}, ["gpt-4"]),
        ({"states": ("COMPLETED",)}, ["cnn-3", "mnist-2", "mnist-1"]),
        ({"owner": "bob"}, ["gpt-4"]),
        ({"project": "toys"}, ["cnn-3", "mnist-1"]),
        ({"group": "sweep"}, ["mnist-1"]),
        ({"tag": "base"}, ["mnist-1"]),
        ({"commit": "abc"}, ["cnn-3", "mnist-1"]),
        ({"where": ("loss<0.3",)}, ["gpt-4", "mnist-2"]),
        ({"where": ("best:loss<0.3", "loss>0.3")}, ["mnist-1"]),
        ({"since": 20.0, "until": 40.0}, ["cnn-3", "mnist-2"]),
        ({"text": "nothing"}, []),
    ],
)
def test_runs_are_found_by_what_is_asked(
    full: PlaneStore, words: dict[str, Any], runs: list[str]
) -> None:
    assert found(full, **words) == runs


def test_pages_follow_each_other_without_a_gap_though_runs_are_added(full: PlaneStore) -> None:
    first = listed(full, limit=2)
    full.state.put(*ended("new-5", 50.0, 0.1))

    second = listed(full, limit=2, cursor=first["next"])

    assert [one["run_id"] for one in first["items"]] == ["gpt-4", "cnn-3"]
    assert [one["run_id"] for one in second["items"]] == ["mnist-2", "mnist-1"]
    assert second["next"] is None


@pytest.mark.parametrize(
    ("sort", "runs"),
    [
        ("last:loss", ["gpt-4", "mnist-2", "mnist-1", "cnn-3"]),
        ("-last:loss", ["cnn-3", "mnist-1", "mnist-2", "gpt-4"]),
        ("config:lr", ["mnist-1", "cnn-3", "gpt-4", "mnist-2"]),
        ("-config:lr", ["cnn-3", "mnist-1", "gpt-4", "mnist-2"]),
        ("config:opt.name", ["cnn-3", "mnist-2", "gpt-4", "mnist-1"]),
        ("-config:opt.name", ["mnist-2", "cnn-3", "gpt-4", "mnist-1"]),
        ("created_at", ["mnist-1", "mnist-2", "cnn-3", "gpt-4"]),
        ("duration", ["cnn-3", "mnist-2", "mnist-1", "gpt-4"]),
        ("-project", ["cnn-3", "mnist-1", "mnist-2", "gpt-4"]),
    ],
)
def test_sorted_pages_follow_each_other_and_what_a_run_does_not_have_is_last(
    full: PlaneStore, sort: str, runs: list[str]
) -> None:
    full.state.put(
        given("mnist-1", {"lr": 0.1}),
        given("mnist-2", {"opt": {"name": "sgd"}}),
        given("cnn-3", {"lr": 2, "opt": {"name": "adam"}}),
    )
    pages, cursor = [], ""

    while not pages or cursor:
        page = listed(full, RunSearch(sort=sort), 1, cursor)
        pages.append(page["items"])
        cursor = page["next"] or ""

    assert [one["run_id"] for items in pages for one in items] == runs


def given(job: str, values: dict[str, Any]) -> SubmissionRow:
    return SubmissionRow(job, int(job[-1]), spec={"hyperparameters": values})


def test_a_list_has_what_each_run_was_given(full: PlaneStore) -> None:
    full.state.put(given("mnist-1", {"lr": 0.1}))

    items = listed(full)["items"]

    assert {one["run_id"]: one["config"] for one in items} == {
        "gpt-4": {},
        "cnn-3": {},
        "mnist-2": {},
        "mnist-1": {"lr": 0.1},
    }


def test_what_cannot_be_understood_is_refused(full: PlaneStore) -> None:
    for cursor in ("here", "[1]", "[[], 1, 2]", "[" * 5000, "[1, 2]"):
        with pytest.raises(BadRunCursor, match="is not a cursor of this list"):
            listed(full, RunSearch(sort="name"), cursor=cursor)
    for sort in ("odd", "last:", "odd:loss", "-", "config"):
        with pytest.raises(BadOrder, match="cannot be sorted by"):
            listed(full, RunSearch(sort=sort))
    with pytest.raises(BadRunCursor, match="is not a cursor of this list"):
        listed(full, cursor="here")
    with pytest.raises(BadCondition):
        listed(full, RunSearch(where=("loss",)))
    with pytest.raises(NotFound, match="did you mean 'mnist-1'"):
        shown(full, "mnist-11")
    for name in ("", "a\0b", "a\ud800"):
        with pytest.raises(NotFound):
            shown(full, name)


def test_a_run_is_shown_with_config_timeline_spec_and_files(
    full: PlaneStore, tmp_path: Path
) -> None:
    folder = tmp_path / "home" / "runs" / "mnist-1"
    folder.mkdir(parents=True)
    (folder / "diff.patch").write_text("+x\n")
    spec = {"name": "mnist", "hyperparameters": {"epochs": 2}, "env": {"KEY": "secret"}}
    change = {"lr": {"value": 0.2, "hold": False}}
    full.state.put(
        SubmissionRow("mnist-1", 1, "ann", spec=spec),
        RankProcessRow("mnist-1", "t", 0, 0, "life", knobs=[{"name": "lr", "value": 0.1}]),
        CommandRow("c", 1, "mnist-1", "knob", change, state="applied", effective=4, before=0.1),
    )

    run = shown(full, "mnist-1")

    assert run["config"] == {"epochs": 2, "lr": 0.1}
    assert [(one["step"], one["values"]) for one in run["timeline"]] == [
        (0, {"epochs": 2, "lr": 0.1}),
        (4, {"lr": 0.2}),
    ]
    assert run["spec"]["env"] == ["KEY"]
    assert run["recorded"] == RECORD
    assert run["artifacts"] == [{"kind": "diff", "name": "diff.patch", "bytes": 3}]
    assert run["checkpoints"] == []
    assert diff("mnist-1") == "+x\n"
    assert diff("mnist-2") is None
    assert diff("../../etc") is None


def test_runs_are_compared_side_by_side(full: PlaneStore) -> None:
    other = {**RECORD, "packages": {"torch": "2.6", "zope.interface": "7"}, "torch": "2.6"}
    full.state.put(
        Fact("experiment/mnist-2", other),
        RankProcessRow("mnist-1", "t", 0, 0, "a", knobs=[{"name": "lr", "value": 0.1}]),
        RankProcessRow("mnist-2", "t", 0, 0, "b", knobs=[{"name": "lr", "value": 0.2}]),
    )

    told = compared(full, ["mnist-1", "mnist-2"])

    assert [run["run_id"] for run in told["runs"]] == ["mnist-1", "mnist-2"]
    differs = {"missing": [False, False]}
    assert told["config"] == [{"name": "lr", "values": [0.1, 0.2], **differs}]
    assert told["same"] == 1  # the words of the command line
    assert told["metrics"] == [
        {
            "name": "loss",
            "goal": "min",
            "last": [0.5, 0.25],
            "best": [0.25, 0.125],
            "best_step": [3, 3],
            "winner": 1,
        }
    ]
    assert told["packages"] == [{"name": "torch", "values": ["2.5", "2.6"], **differs}]
    assert told["environment"] == [{"name": "torch", "values": ["2.5", "2.6"], **differs}]
    sums = {row["name"]: row["values"] for row in told["summary"]}
    assert (sums["state"], sums["steps"], sums["faults"]) == (["COMPLETED"] * 2, [10, 10], [0, 0])
    assert [row["name"] for row in told["git"]] == ["commit", "branch", "dirty", "diff"]


@pytest.mark.parametrize("count", [0, 1, 21])
def test_too_few_and_too_many_runs_are_not_compared(full: PlaneStore, count: int) -> None:
    with pytest.raises(BadComparison, match="name 2 to 20 runs"):
        compared(full, ["mnist-1"] * count)


def test_a_job_that_waits_is_found_by_the_labels_of_its_spec(full: PlaneStore) -> None:
    spec = {"name": "later", "project": "plans", "tags": ["night"]}
    waiting = JobRow("later-6", "later", state="QUEUED", run_id="later-6", created_at=60.0)
    full.state.put(waiting, RunRow("later-6", "later-6"), SubmissionRow("later-6", 1, spec=spec))

    assert found(full, project="plans") == found(full, tag="night") == ["later-6"]
    assert shown(full, "later-6")["tags"] == ["night"]


def test_a_run_that_goes_on_has_its_metrics_by_now(full: PlaneStore) -> None:
    run = shown(full, "gpt-4")

    loss = {"goal": "min", "last": 0.1, "min": 0.1, "max": 0.1, "best": 0.1, "best_step": 1}
    assert run["metrics"] == {"loss": loss}
    assert (run["summary"], run["recorded"], run["commit"]) == (None, None, None)
