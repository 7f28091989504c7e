"""What engines with a script share: questions asked seldom, errors in the engine's words."""

import os
from pathlib import Path

import pytest

from torchloom import settings
from torchloom.errors import LoomError
from torchloom.launch.records.parcel import travelling
from torchloom.schedulers.batch.commands import EngineCommands, EngineRefused
from torchloom.schedulers.batch.index import Index, IndexEntry, find
from torchloom.schedulers.batch.status import EngineJob, Query
from torchloom.specs.api import AppState


class Asked:
    """An engine that counts questions, and a clock that stands still unless told."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.now = 0.0
        self.jobs = {"1": EngineJob("1", AppState.RUNNING)}

    def ask(self) -> dict[str, EngineJob]:
        self.times.append(self.now)
        return dict(self.jobs)


def test_any_number_of_jobs_cost_one_question() -> None:
    engine = Asked()
    query = Query(engine.ask, lambda: engine.now)

    for number in range(100):
        query.job(str(number))

    assert engine.times == [0.0]


def test_the_same_answer_is_asked_for_less_and_less() -> None:
    engine = Asked()
    query = Query(engine.ask, lambda: engine.now)

    for _ in range(60):
        query.jobs()
        engine.now += 1.0

    assert engine.times == [0.0, 1.0, 3.0, 7.0, 15.0, 30.0, 45.0]


def test_news_are_asked_for_often_again() -> None:
    engine = Asked()
    query = Query(engine.ask, lambda: engine.now)
    for _ in range(10):
        query.jobs()
        engine.now += 1.0
    engine.jobs["1"] = EngineJob("1", AppState.FAILED)
    engine.times.clear()

    for _ in range(10):
        query.jobs()
        engine.now += 1.0

    assert engine.times == [15.0, 16.0, 18.0]


@pytest.mark.process
def test_an_engines_own_words_are_in_the_error() -> None:
    words = ["sh", "-c", "echo one: bad partition >&2; echo more >&2; exit 3"]

    with pytest.raises(EngineRefused, match=r"^sh: one: bad partition; more$"):
        EngineCommands("slurm").run(words)


def test_a_command_that_is_not_there_says_where_it_is() -> None:
    with pytest.raises(LoomError, match="slurm is not installed here: no nosuch on PATH"):
        EngineCommands("slurm").run(["nosuch"])


@pytest.mark.process
def test_silence_is_asked_again_and_a_refusal_is_not(tmp_path: Path) -> None:
    pauses: list[float] = []
    commands = EngineCommands("slurm", pauses.append)
    script = (
        f"echo x >> {tmp_path}/n; [ $(wc -l < {tmp_path}/n) = 3 ] || {{ echo $0 >&2; exit 1; }}"
    )

    commands.ask(["sh", "-c", script, "busy"], lambda said: said == "busy")

    assert pauses == [0.5, 1.0]
    with pytest.raises(EngineRefused, match="no: no"):
        commands.ask(["sh", "-c", "echo no: no >&2; exit 1"], lambda said: said == "busy")
    assert pauses == [0.5, 1.0]


def test_jobs_are_found_by_number_run_name_and_beginning(home: Path) -> None:
    older = IndexEntry("7", "slurm", "app-bcd", "app", "torchx", "/f", submitted_at=1.0)
    newer = IndexEntry("8", "slurm", "app-xyz", "app", "torchx", "/f", submitted_at=2.0)
    for entry in (older, newer):
        Index("slurm").add(entry)

    assert [list(find(name)) for name in ("7", "app-bcd", "app", "app-x")] == [
        [older],
        [older],
        [newer],
        [newer],
    ]
    assert list(find("nope")) == []
    assert Index("slurm").get("../../x") is None


def test_what_belongs_to_a_shell_or_another_job_does_not_travel() -> None:
    own = {"SLURM_JOB_ID": "1", "LOOM_JOB": "x", "HOSTNAME": "h", "BASH_FUNC_m%%": "() {", "_": "x"}
    kept = {"PATH": "/bin", "WANDB_API_KEY": "k", "LOOM_PLANE": "0", "XDG_RUNTIME_DIR": "/run/u"}

    assert travelling({**own, **kept}) == kept


def test_the_folder_of_a_login_does_not_travel() -> None:
    assert travelling({"XDG_RUNTIME_DIR": "/run/user/1000", "HOME": "/home/me"}) == {
        "HOME": "/home/me"
    }


def test_sockets_are_not_in_the_tmpdir_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    assert settings.runtime_dir() == Path(f"/tmp/torchloom-{os.getuid()}")
