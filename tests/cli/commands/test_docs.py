"""`loom docs`: the manual, from files, with or without a browser."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from torchloom.cli.commands.cmd_docs import find
from torchloom.cli.main import main

from ..test_json import problems

NAMES = (
    *("index", "guides/run-on-slurm", "guides/clean-up", "tutorials/slurm", "reference/python"),
    *("reference/cli/index", "reference/cli/run", "concepts/checkpoints", "internals/checkpoints"),
)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def manual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a built manual, on a machine without a display."""
    for name in (*NAMES, "404"):
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / f"{name}.html").write_text("<p>")
    monkeypatch.setenv("LOOM_MANUAL", str(tmp_path / "site"))
    for variable in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "site"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["docs", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_without_a_display_the_address_is_printed(manual: Path, run: Run) -> None:
    assert run() == (0, f"{(manual / 'index.html').as_uri()}\n", "")
    assert run("run-on-slurm")[1] == f"{(manual / 'guides/run-on-slurm.html').as_uri()}\n"


def test_a_browser_is_opened_but_not_over_ssh_nor_where_the_address_is_asked_for(
    manual: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {opened}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)

    run("clean-up")
    run("clean-up", "--print")
    run("clean-up", "--json")
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 1 10.0.0.2 22")
    run("clean-up")

    assert opened.read_text().splitlines() == [(manual / "guides/clean-up.html").as_uri()]


def test_json_has_the_page_its_file_and_its_address(manual: Path, run: Run) -> None:
    found = json.loads(run("--json", "python")[1])

    path = manual / "reference/python.html"
    assert found == {"page": "reference/python", "path": str(path), "url": path.as_uri()}
    assert problems("docs", found) == []


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("run", "reference/cli/run"),
        ("guides/run-on-slurm.md", "guides/run-on-slurm"),
        ("slurm", "tutorials/slurm"),
        ("reference/cli", "reference/cli/index"),
        ("internals/checkpoints", "internals/checkpoints"),
    ],
)
def test_a_page_is_found_by_its_name(page: str, name: str) -> None:
    assert find(page, NAMES) == name


def test_what_is_no_page_or_several_is_refused_with_names(manual: Path, run: Run) -> None:
    assert run("run-on-slrm") == (
        2,
        "",
        "loom: no page 'run-on-slrm'; did you mean 'run-on-slurm'?;"
        " `loom docs` opens the first page\n",
    )
    assert run("checkpoints") == (
        2,
        "",
        "loom: page 'checkpoints' is ambiguous: concepts/checkpoints, internals/checkpoints\n",
    )


def test_where_there_is_no_manual_it_says_how_to_have_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOM_MANUAL", "none")

    code, out, err = run()

    assert (code, out) == (1, "")
    assert "`make docs`" in err
