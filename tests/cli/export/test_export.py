"""A run as one file: from the folder alone, from what a plane remembers, small, and harmless."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.export import report
from torchloom.cli.export.report import hidden
from torchloom.cli.main import main
from torchloom.launch.records.folder import RunFolder
from torchloom.specs.api import AppState
from torchloom.weaver.runs import provenance
from torchloom.weaver.store import PlaneStore
from torchloom.weaver.store.rows import CheckpointRow, EventRow, Fact, RankProcessRow, SubmissionRow

from ...harness.metric_rows import in_file
from ..test_json import problems
from .exported import HOSTILE, PAGE, log, remembered, store_of, within

MILLION = 1_000_000
LARGEST = 5_000_000  # bytes of a file
SECRET = "canary-5f1c-hunter2"
Said = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a page to put data into; what a browser makes of the real one is seen there."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "report.html").write_text(PAGE)
    monkeypatch.setenv("LOOM_DASHBOARD", str(folder))
    return folder


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """Run a command line in this process; return its code and what it printed."""

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(words))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def store(state: Path) -> Any:
    found = store_of(state)
    yield found
    found.close()


def test_a_run_that_no_plane_knows_is_told_by_its_folder(ended: Any, said: Said) -> None:
    ended("train-a", at=AppState.FAILED, reason="rank_failed", ranks=2, logs=["one\ntwo\n", "x\n"])

    code, out, _ = said("export", "train-a", "-o", "-")

    (run,) = within(out)["runs"]
    assert code == 0
    assert [run["job"][name] for name in ("id", "state", "reason", "owner")] == [
        *("train-a", "FAILED", "rank_failed", "ada")
    ]
    assert run["job"]["first_error"] == {"message": "one\ntwo"}
    assert [(rank["rank"], rank["state"], rank["exit_code"]) for rank in run["ranks"]] == [
        *((0, "failed", 0), (1, "failed", 0))
    ]
    lines = [[line["message"] for line in tail["items"]] for tail in run["logs"]]
    assert (lines, run["series"], run["recorded"]["argv"]) == (
        [["one", "two"], ["x"]],
        [],
        ["true"],
    )


def test_the_last_lines_of_each_rank_are_kept_and_as_many_as_are_wanted(
    ended: Any, said: Said
) -> None:
    ended("train-a", logs=["".join(f"line {n}\n" for n in range(300))])

    tails = [
        within(said("export", "@", "-o", "-", *words)[1])["runs"][0]["logs"]
        for words in ((), ("--last", "2"), ("--last", "0"))
    ]

    assert len(tails[0][0]["items"]) == 200
    assert [line["message"] for line in tails[1][0]["items"]] == ["line 298", "line 299"]
    assert (tails[1][0]["older"], tails[2]) == (True, [])


def test_what_a_plane_remembers_is_there_without_a_plane_and_without_the_folder(
    store: PlaneStore, state: Path, said: Said
) -> None:
    before = {"kind": "knob", "payload": {"lr": {"value": 0.1}}, "command": "c1"}
    remembered(
        store,
        "a-1",
        RankProcessRow(
            "a-1", "trainer", 0, 1, "i", knobs=[{"name": "lr", "value": 1.0}], state="ended"
        ),
        CheckpointRow(
            "a-1", 7, 1, 1, "committed", bytes=10, created_at=1002.0, committed_at=1003.0
        ),
    )
    store.state.put(
        EventRow(
            1,
            1005.0,
            "a-1",
            "command_applied",
            -1,
            5,
            "eve",
            "cooler",
            {**before, "before": 1.0, "after": 0.1},
        )
    )
    log(store, "a-1", ["loss", "lr"], [(n, 1000.0 + n / 8, 1 / n, 0.5) for n in range(1, 50)])
    log(store, "a-1", ["val"], [(40, 1005.0, 1.0)])

    (run,) = within(said("export", "a-1", "-o", "-")[1])["runs"]

    stored = in_file(state / "plane" / "records.db")
    held = {
        ("a-1", one["name"], one["rank"], one["role"], step): (time, value)
        for one in run["series"]
        for step, time, value in zip(one["steps"], one["times"], one["values"], strict=True)
    }
    assert held == {place: (point.time, point.value) for place, point in stored.items()}
    (entry,) = [one for one in run["timeline"] if one["kind"] == "knob"]
    assert [entry[name] for name in ("title", "author", "reason", "step", "before", "after")] == [
        *("lr 1 -> 0.1", "eve", "cooler", 5, 1.0, 0.1)
    ]
    assert [(one["step"], one["state"]) for one in run["checkpoints"]] == [(7, "committed")]
    assert [(rank["rank"], rank["step"]) for rank in run["ranks"]] == [(0, 49)]
    assert (run["config"], run["logs"]) == ({"lr": 1.0}, [])


@pytest.mark.process  # it takes some seconds
def test_a_million_points_are_a_small_file_and_no_peak_is_lost(
    store: PlaneStore, said: Said
) -> None:
    remembered(store, "a-1")
    spike = 654_321
    values = ((n, n / 10, 1e9 if n == spike else math.sin(n / 1e5) + n % 7) for n in range(MILLION))
    log(store, "a-1", ["loss"], values)

    code, _, err = said("export", "a-1", "-o", "big.html")

    text = Path("big.html").read_text()
    (curve,) = within(text)["runs"][0]["series"]
    (at,) = [n for n, value in enumerate(curve["max"]) if value == 1e9]
    assert (code, err) == (
        0,
        f"loom: big.html: {len(text) / 1e6:.1f} MB; it opens in any browser\n",
    )
    assert len(text) < LARGEST - 1_000_000  # a page is a part of it
    assert curve["first_steps"][at] <= spike <= curve["steps"][at]
    assert sum(curve["counts"]) == MILLION
    assert len(curve["steps"]) <= report.MOST


def test_where_there_are_very_many_curves_the_lowest_ranks_are_kept_and_it_is_said(
    store: PlaneStore,
) -> None:
    remembered(store, "a-1")
    for rank in (1, 2):
        rows = [(n, n, *(float(n + name) for name in range(4))) for n in range(500)]
        log(store, "a-1", [f"m{name}" for name in range(4)], rows, rank)

    every, nothing = report.drawn_curves(store.records, "a-1")
    few, notes = report.drawn_curves(store.records, "a-1", 1200)
    least, more = report.drawn_curves(store.records, "a-1", 60)

    assert (len(every), nothing) == (8, [])
    assert [(one["name"], one["rank"]) for one in few] == [(f"m{n}", 1) for n in range(4)]
    assert sum(len(one["steps"]) for one in few) <= 1200
    assert notes == ["To limit the file size, each metric has only the curve of its lowest rank."]
    assert [one["name"] for one in least] == ["m0", "m1", "m2"]
    assert more[1] == "To limit the file size, 1 metrics are left out."


def test_nothing_that_was_logged_or_named_can_leave_its_place_in_the_file(
    store: PlaneStore, ended: Any, said: Said
) -> None:
    ended("a-1", logs=[f"{HOSTILE}\n\x1b[31mred\u2028\n"])
    remembered(
        store,
        "a-1",
        RankProcessRow("a-1", HOSTILE, 0, 1, "i", knobs=[{"name": HOSTILE, "value": HOSTILE}]),
        reason=HOSTILE,
    )
    log(store, "a-1", [HOSTILE], [(1, 1.0, math.nan), (2, 2.0, 3.0)])

    _, out, _ = said("export", "a-1", "-o", "-")

    (run,) = within(out)["runs"]
    data = out[len(PAGE.partition("__LOOM")[0]) : -len(PAGE.rpartition("__")[2]) - 1]
    assert [letter for letter in "<>&\u2028\x1b" if letter in data] == []
    assert [(one["name"], one["values"]) for one in run["series"]] == [(HOSTILE, [None, 3.0])]
    assert (run["config"], run["logs"][0]["items"][0]["message"]) == ({HOSTILE: HOSTILE}, HOSTILE)


def test_no_secret_is_in_the_file(store: PlaneStore, ended: Any, said: Said) -> None:
    ended("a-1")
    env, words = {"WANDB_API_KEY": SECRET, "HOME": SECRET}, ["train.py", f"--token={SECRET}"]
    folder = RunFolder.named("a-1").path
    request = json.loads((folder / "request.json").read_text())
    request["roles"][0]["replicas"][0] |= {"env": env, "argv": words}
    (folder / "request.json").write_text(json.dumps(request))
    _, alone, _ = said("export", "a-1", "-o", "-")
    wanted = provenance.ProvenanceRequest("a-1", "a-1", "host", 1)
    given = {"api_key": SECRET, "nested": {"password": SECRET}, "url": f"s3://me:{SECRET}@host/x"}
    remembered(
        store,
        "a-1",
        SubmissionRow(
            "a-1", 1, spec={"name": "a", "env": env, "args": words, "hyperparameters": given}
        ),
        Fact(f"{provenance.FACT}a-1", provenance.recorded(wanted)),
    )

    _, out, _ = said("export", "a-1", "-o", "-")

    names = [within(text)["runs"][0]["recorded"]["env"]["names"] for text in (alone, out)]
    assert [SECRET in text for text in (alone, out)] == [False, False]
    assert all({"WANDB_API_KEY", "HOME"} <= set(found) for found in names)


def test_what_only_sounds_like_a_secret_is_shown() -> None:
    told = {"tokenizer": "gpt2", "max_tokens": 512, "hf_token": "x", "a": [{"Secret": "y"}]}

    assert hidden(told) == {
        "tokenizer": "gpt2",
        "max_tokens": 512,
        "hf_token": "***",
        "a": [{"Secret": "***"}],
    }


def test_several_runs_are_one_file_and_say_how_they_differ(store: PlaneStore, said: Said) -> None:
    for job, rate in (("a-1", 0.1), ("b-2", 0.2)):
        knobs = [{"name": "lr", "value": rate}]
        remembered(store, job, RankProcessRow(job, "trainer", 0, 1, "i", knobs=knobs))
        log(store, job, ["loss"], [(1, 1001.0, rate)])

    found = within(said("export", "a-1", "b-2", "a-1", "-o", "-")[1])

    assert [run["job"]["id"] for run in found["runs"]] == ["a-1", "b-2"]
    assert found["compared"][0] == ["", "a-1", "b-2"]
    assert ["lr", "0.1", "0.2"] in found["compared"]


def test_the_data_alone_keeps_to_its_schema_and_needs_no_page(
    store: PlaneStore, ended: Any, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOM_DASHBOARD", "none")
    ended("a-1", logs=["x\n"])
    remembered(store, "a-1", CheckpointRow("a-1", 7, 1, 1, "committed"))
    log(store, "a-1", ["loss"], [(n, n, float(n)) for n in range(9000)])
    ended("b-2")

    found = [json.loads(said("export", run, "--json")[1]) for run in ("a-1", "b-2")]

    assert [problems("export", one) for one in found] == [[], []]


def test_a_file_that_is_there_is_replaced_only_when_that_is_said(ended: Any, said: Said) -> None:
    ended("a-1")
    first = said("export", "a-1")
    Path("a-1.html").write_text("mine")

    refused = said("export", "a-1"), said("export", "a-1", "-o", "a-1.html")
    kept = Path("a-1.html").read_text()
    again = said("export", "a-1", "--yes")

    why = "loom: a-1.html exists; --yes replaces it, or choose another name\n"
    assert (first[0], refused, kept) == (0, ((2, "", why), (2, "", why)), "mine")
    assert (again[0], within(Path("a-1.html").read_text())["version"]) == (0, 1)
    assert [path.name for path in Path().iterdir()] == ["a-1.html"]


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["export"], 2, "Missing argument"),
        (["export", "a-2"], 2, "no job 'a-2'; did you mean 'a-1'?"),
        (["export", "a-1", "-o", "nosuch/x.html"], 2, "nosuch does not exist"),
        (["export", "a-1", "-o", "."], 2, ". exists; --yes replaces it"),
        (["export", "a-1", "--last", "-1"], 2, "--last"),
        (["export", *("a-1" for _ in range(9))], 2, "name 1 to 8 runs, not 9"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_said_in_one_line(
    words: list[str], code: int, why: str, ended: Any, said: Said
) -> None:
    ended("a-1")

    found, out, err = said(*words)

    assert (found, out, why in err, err.count("\n")) == (code, "", True, 1)


@pytest.mark.parametrize("is_old", [False, True])
def test_where_no_dashboard_was_built_it_says_how_to_have_one(
    is_old: bool, ended: Any, said: Said, bundle: Path
) -> None:
    ended("a-1")
    if is_old:
        (bundle / "report.html").write_text("built by something else")
    else:
        (bundle / "report.html").unlink()

    code, _, err = said("export", "a-1")

    assert (code, "run `make dashboard`" in err, "`--json` does not need it" in err) == (
        1,
        True,
        True,
    )
    assert not Path("a-1.html").exists()


def test_a_plane_elsewhere_has_the_folders_and_it_is_said(
    state: Path, ended: Any, said: Said
) -> None:
    ended("a-1")
    (state / "login.json").write_text("{}")

    code, _, err = said("export", "a-1")

    assert (code, "ask on its host" in err) == (2, True)


@pytest.mark.process
@pytest.mark.parametrize("out", ["-", "x.html"])
def test_the_page_is_written_byte_by_byte_whatever_the_terminal_speaks(
    out: str, ended: Any, bundle: Path
) -> None:
    ended("a-1")
    (bundle / "report.html").write_text(f"{PAGE}\u2013\u202f", encoding="utf-8")
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C.ISO-8859-1"}
    words = [sys.executable, "-m", "torchloom", "export", "a-1", "-o", out]

    done = subprocess.run(words, capture_output=True, env=env, check=True)

    made = done.stdout if out == "-" else Path(out).read_bytes()
    assert made.endswith("</html>\u2013\u202f".encode())


@pytest.mark.process
def test_the_help_imports_nothing_heavy() -> None:
    words = "import sys; from torchloom.cli.main import main; main(['export', '--help']);"
    script = words + " print([name for name in ('fastapi', 'sqlalchemy') if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.stdout.splitlines()[-1] == "[]"
