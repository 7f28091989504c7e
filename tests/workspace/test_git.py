"""Where a source stands is what git itself says of it, and no trap of a repository springs."""

import hashlib
import os
import subprocess
import time
from pathlib import Path

import pytest

from torchloom.workspace import sources
from torchloom.workspace.sources import LIMIT, Repository, source_of, without_secrets

from ..harness.repositories import committed
from ..harness.repositories import git as git_itself

pytestmark = pytest.mark.process


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Return an environment with a home of its own, so that nobody's own settings matter."""
    (tmp_path / "home").mkdir()
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home")}


def ask(folder: Path, *words: str) -> str:
    return git_itself(folder, *words).decode()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make a real repository with one commit on the branch `work`."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("lr = 0.1\n")
    (folder / "data").mkdir()
    (folder / "data" / "note").write_text("one\n")
    committed(folder)
    return folder


def test_a_clean_source_has_its_commit_and_branch_and_no_diff(
    repository: Path, env: dict[str, str]
) -> None:
    found = source_of([repository / "data"], env)

    assert found is not None
    assert found.patch == b""
    assert found.facts == {
        "root": str(repository),
        "commit": ask(repository, "rev-parse", "HEAD").strip(),
        "branch": "work",
        "dirty": False,
        "remote": None,
        "diff": None,
        "untracked": [],
        "note": "",
    }


def test_the_diff_brings_another_copy_of_the_commit_to_what_ran(
    repository: Path, env: dict[str, str], tmp_path: Path
) -> None:
    ask(repository, "clone", "-q", str(repository), str(tmp_path / "copy"))
    (repository / "train.py").write_text("lr = 0.2\nsteps = 3\n")
    (repository / "data" / "note").unlink()
    (repository / "new.py").write_text("print()\n")
    ask(repository, "add", "new.py")
    (repository / "results é.txt").write_text("0.5\n")

    found = source_of([repository], env)
    assert found is not None
    subprocess.run(["git", "-C", str(tmp_path / "copy"), "apply"], input=found.patch, check=True)

    assert (tmp_path / "copy" / "train.py").read_text() == "lr = 0.2\nsteps = 3\n"
    assert (tmp_path / "copy" / "new.py").read_text() == "print()\n"
    assert not (tmp_path / "copy" / "data" / "note").exists()
    assert (found.facts["dirty"], found.facts["untracked"]) == (True, ["results é.txt"])
    sha = hashlib.sha256(found.patch).hexdigest()
    assert found.facts["diff"] == {"bytes": len(found.patch), "truncated": False, "sha256": sha}


def test_a_long_diff_ends_with_a_whole_line_and_says_so(
    repository: Path, env: dict[str, str]
) -> None:
    (repository / "train.py").write_text("".join(f"x = {n}\n" for n in range(200_000)))

    found = source_of([repository], env)

    assert found is not None
    assert LIMIT - 100 < len(found.patch) <= LIMIT
    assert found.patch.endswith(b"\n")
    assert found.facts["diff"]["truncated"] is True
    assert (
        found.facts["note"] == "the difference is longer than 1048576 bytes; the rest is left out"
    )


def test_the_first_folder_in_a_repository_counts_and_none_is_no_error(
    repository: Path, env: dict[str, str], tmp_path: Path
) -> None:
    other = tmp_path / "plain"
    other.mkdir()

    found = source_of([other, repository], env)

    assert found is not None
    assert found.facts["root"] == str(repository)
    assert source_of([other, tmp_path / "missing"], env) is None
    assert source_of([repository], {"PATH": str(other)}) is None  # no git at all


def test_a_repository_of_whoever_started_the_weaver_is_not_meant(
    repository: Path, env: dict[str, str], tmp_path: Path
) -> None:
    ask(tmp_path, "init", "-q", "other")
    theirs = {"GIT_DIR": str(tmp_path / "other" / ".git"), "GIT_WORK_TREE": str(tmp_path / "other")}

    found = source_of([repository], {**env, **theirs})

    assert found is not None
    assert (found.facts["root"], found.facts["branch"]) == (str(repository), "work")


def test_a_repository_without_a_commit_is_told_as_one(tmp_path: Path, env: dict[str, str]) -> None:
    ask(tmp_path, "init", "-q", "-b", "main", "fresh")

    found = source_of([tmp_path / "fresh"], env)

    assert found is not None
    assert (found.facts["commit"], found.facts["branch"]) == (None, "main")
    assert found.facts["note"] == "the repository has no commit yet"


def test_a_change_of_the_same_length_in_the_same_second_is_seen(
    repository: Path, env: dict[str, str]
) -> None:
    note, index = repository / "data" / "note", repository / ".git" / "index"
    ask(repository, "config", "core.trustctime", "false")
    second = int(time.time()) - 100
    os.utime(note, (second, second))
    ask(repository, "update-index", "--refresh")
    os.utime(index, (second, second))
    note.write_text("two\n")
    os.utime(note, (second, second))

    found = source_of([repository], env)

    assert found is not None
    assert b"+two\n" in found.patch


def test_nothing_that_a_repository_names_is_executed(
    repository: Path, env: dict[str, str], tmp_path: Path
) -> None:
    sprung = tmp_path / "sprung"
    trap = tmp_path / "trap.sh"
    trap.write_text(f'#!/bin/sh\necho "$0 $*" >> {sprung}\ncat\n')
    trap.chmod(0o755)
    for name in ("pre-commit", "post-index-change", "post-checkout", "fsmonitor-watchman"):
        hook = repository / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.symlink_to(trap)
    for setting in (
        *("core.fsmonitor", "core.pager", "pager.diff", "diff.external", "core.sshCommand"),
        *("diff.odd.textconv", "diff.odd.command", "filter.odd.clean", "filter.odd.smudge"),
        *("core.askPass", "core.editor", "interactive.diffFilter"),
    ):
        ask(repository, "config", setting, str(trap))
    ask(repository, "config", "filter.more.process", str(trap))
    ask(repository, "config", "filter.more.required", "true")
    (repository / ".gitattributes").write_text("*.py diff=odd filter=odd\nnote filter=more\n")
    (repository / "train.py").write_text("lr = 0.3\n")
    (repository / "data" / "note").write_text("two\n")
    time.sleep(0.01)
    os.utime(repository / "train.py")  # so that its content must be looked at

    found = source_of([repository], {**env, "GIT_EXTERNAL_DIFF": str(trap), "PAGER": str(trap)})

    assert not sprung.exists(), sprung.read_text()
    assert found is not None
    assert b"+lr = 0.3\n" in found.patch
    assert b"+two\n" in found.patch


def test_a_git_that_hangs_is_not_waited_for(tmp_path: Path, env: dict[str, str]) -> None:
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)

    began = time.monotonic()
    path = {**env, "PATH": f"{slow.parent}:{os.environ['PATH']}"}
    with pytest.raises(sources.Silent):
        Repository(tmp_path, path, limit=0.1).line("rev-parse", "HEAD")

    assert time.monotonic() - began < 30


def test_reading_leaves_the_repository_as_it_was(repository: Path, env: dict[str, str]) -> None:
    (repository / "train.py").write_text("lr = 0.3\n")
    os.utime(repository / "data" / "note", (1, 1))  # which git would note in its index
    before = {p: p.stat().st_mtime_ns for p in (repository / ".git").rglob("*")}

    source_of([repository], env)

    assert {p: p.stat().st_mtime_ns for p in (repository / ".git").rglob("*")} == before


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://ann:hunter2@host/x.git\n", "https://host/x.git"),
        ("https://host/x.git?token=1", "https://host/x.git"),
        ("git@host:x.git", "git@host:x.git"),
        ("", None),
        ("http://[::1", None),
    ],
)
def test_a_remote_is_shown_without_secrets(url: str, shown: str | None) -> None:
    assert without_secrets(url) == shown
