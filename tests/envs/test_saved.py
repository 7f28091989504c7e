"""A file of variables, read back by real shells byte for byte."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.envs import saved
from torchloom.errors import Failure, NotFound
from torchloom.launch.environments import World

NASTY = {
    "A": 'it\'s "quoted" $HOME `id` \\ !x',
    "B": "two\nlines\n",
    "C": "",
    "D": " spaces\tand tabs ",
    "E": "umlaut ä, not utf-8 \udcff",
    "F": "-n",
}


def of(variables: dict[str, str], job_id: str | None = "7") -> saved.SavedEnv:
    return saved.SavedEnv.of(variables, World("slurm", ("n1", "n2"), job_id=job_id), "n1")


def set_by(shell: str, text: str) -> dict[str, str]:
    """Return what a real shell has after it read a text."""
    program = 'eval "$1"; exec env -0' if shell != "fish" else "echo $argv[1] | source; env -0"
    words = [shell, "-c", program, *(["sh"] if shell != "fish" else []), os.fsencode(text)]
    done = subprocess.run(words, env={"PATH": os.environ["PATH"]}, capture_output=True, check=True)
    pairs = (os.fsdecode(entry).partition("=") for entry in done.stdout.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def test_what_is_written_is_read_back_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    kept = of(NASTY)

    kept.write(tmp_path / "a/b.json")

    assert saved.read(tmp_path / "a/b.json") == kept
    assert (tmp_path / "a/b.json").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.json"]


def test_a_file_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "env.json"
    path.write_text("")
    path.chmod(0o644)

    of(NASTY).write(path)

    assert path.stat().st_mode & 0o777 == 0o600


def test_the_newest_file_is_loaded_and_names_come_from_jobs(tmp_path: Path) -> None:
    for number, job in enumerate(("7", "8[1].server/x", None)):
        path = saved.folder(tmp_path) / of({}, job).name
        of({"N": str(number)}, job).write(path)
        os.utime(path, (number, number))

    names = sorted(path.name for path in saved.folder(tmp_path).iterdir())

    assert names == ["slurm-7.json", "slurm-8-1--server-x.json", "slurm.json"]
    assert saved.read(saved.newest(tmp_path)).variables == {"N": "2"}


def test_nothing_saved_is_an_error_that_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="`loom env save` inside the job"):
        saved.newest(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "loom-env/1"}',
        '{"format": "loom-env/1", "variables": {"A": 1}, "job_id": null, "hosts": []}',
    ],
)
def test_a_file_that_save_did_not_write_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(text)

    with pytest.raises(saved.BadEnvFile, match="write it with `loom env save`"):
        saved.read(tmp_path / "x")


def test_a_file_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(Failure, match="name another FILE"):
        of({}).write(tmp_path / "file/env.json")


@pytest.mark.process
@pytest.mark.parametrize("shell", ["bash", "sh", "zsh", "fish"])
def test_a_real_shell_sets_every_value_as_it_was(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")

    got = set_by(shell, saved.render(NASTY, shell))

    assert {name: got.get(name) for name in NASTY} == NASTY


@pytest.mark.process
@settings(max_examples=30, deadline=None)
@given(st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])))
def test_bash_sets_whatever_text(value: str) -> None:
    assert set_by("bash", saved.render({"V": value}, "bash"))["V"] == value


def test_a_name_that_no_shell_can_set_is_left_out_and_told() -> None:
    odd = {"BASH_FUNC_x%%": "() { :; }", "A;rm -rf /": "x", "A": "1"}

    assert saved.render(odd, "bash") == "export A='1'\n"
    assert saved.unsettable(odd) == ["BASH_FUNC_x%%", "A;rm -rf /"]


def test_an_unknown_shell_is_refused_with_those_there_are() -> None:
    with pytest.raises(NotFound, match=r"'fihs'; did you mean 'fish'\?; write one of bash, zsh"):
        saved.render({}, "fihs")


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    of({"A": "1"}).write(tmp_path / "x.json")

    data = json.loads((tmp_path / "x.json").read_text())

    assert (data["format"], data["job_id"], data["hosts"]) == ("loom-env/1", "7", ["n1", "n2"])
