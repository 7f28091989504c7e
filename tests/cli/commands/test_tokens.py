"""`loom tokens`: tokens are shown once, links are good once, and refusals say what to do."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.main import main

from ..test_json import problems

pytestmark = pytest.mark.process


@pytest.fixture
def weaver(state: Path, until: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A weaver of this state folder without the rest of a plane."""
    from torchloom.client import plane

    log = (state / "weaver.log").open("wb")
    words = [sys.executable, "-P", "-m", "torchloom.weaver", "--nats", "nats://127.0.0.1:1"]
    process = subprocess.Popen(words, stdout=log, stderr=log, env=dict(os.environ))

    def answers() -> bool:
        assert process.poll() is None, (state / "weaver.log").read_text()
        try:
            plane.call(plane.door(), 1.0).close()
        except OSError:
            return False
        return True

    until(answers)
    yield process
    process.terminate()
    process.wait()
    log.close()


@pytest.fixture
def run(weaver: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command; return its code and what it printed."""

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["tokens", *words])
        return (code, *capsys.readouterr())

    return run


def asked(run: Any, *words: str) -> Any:
    code, out, err = run(*words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_a_token_is_printed_alone_once_and_listed_without_its_secret(run: Any) -> None:
    code, out, err = run("add", "alice", "--role", "operator", "--label", "ci", "--days", "1")

    secret = out.strip()
    assert (code, out.count("\n"), secret[:5]) == (0, 1, "loom_")
    assert err.startswith("loom: token t-")
    assert err.endswith(" of alice; it is not shown again\n")
    _, table, _ = run()
    heads, *rows = [line.split() for line in table.splitlines()]
    assert heads == ["ID", "USER", "KIND", "STATE", "UNTIL", "LABEL"]
    assert sorted(row[1:4] for row in rows) == [
        ["admin", "token", "valid"],
        ["alice", "token", "valid"],
    ]
    assert secret not in table + run("ls", "--all", "--json")[1]


def test_what_is_printed_as_json_keeps_to_its_schema(run: Any) -> None:
    user = asked(run, "user", "alice", "--role", "viewer")
    made = asked(run, "add", "alice")
    link = asked(run, "link", "alice")
    ended = asked(run, "revoke", made["id"])

    assert problems("tokens-user", user) == []
    assert problems("tokens-users", asked(run, "users")) == []
    assert problems("tokens-add", made) == []
    assert problems("tokens-link", link) == []
    assert problems("tokens-revoke", ended) == []
    assert problems("tokens-ls", asked(run, "ls", "alice", "--all")) == []
    assert problems("tokens", asked(run)) == []
    assert (link["url"], link["fingerprint"]) == (None, None)
    assert [one["id"] for one in asked(run)] == ["first"]
    assert [one["id"] for one in asked(run, "ls", "alice", "--all")] == [made["id"]]


def test_a_link_without_a_server_is_a_code_and_says_so(run: Any) -> None:
    code, out, err = run("link", "alice", "--role", "viewer")

    assert code == 0
    assert len(out.strip()) == 43
    assert "one-time link for alice, valid until " in err
    assert "no server is running that accepts it; `loom up` starts one" in err


def test_a_link_makes_a_user_that_is_not_known_and_says_as_what(run: Any) -> None:
    first, again = run("link", "zoe"), run("link", "zoe")
    chosen = run("link", "yan", "--role", "operator")
    users = {one["name"]: one["role"] for one in json.loads(run("users", "--json")[1])}

    assert (first[0], again[0], chosen[0]) == (0, 0, 0)
    assert "created user zoe, viewer; `loom tokens user zoe --role operator`" in first[2]
    assert "new user" not in again[2]
    assert "created user yan, operator\n" in chosen[2]
    assert (users["zoe"], users["yan"]) == ("viewer", "operator")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["add", "bob"], "no user 'bob'; `loom tokens add bob --role viewer`"),
        (["link", "Bob"], "no user can be called 'Bob'; a name is up to 64"),
        (["ls", "bob"], "no user 'bob'; `loom tokens add bob --role viewer`"),
        (["add", "Bob", "--role", "viewer"], "no user can be called 'Bob'; a name is up to 64"),
        (["add", "bob", "--role", "king"], "'king' is not one of"),
        (["add", "bob", "--role", "viewer", "--days", "0"], "--days"),
        (["revoke", "t-none"], "no token 't-none'; `loom tokens` lists them"),
        (["revoke", "loom_abc"], "that is the token itself; give its id"),
        (["user", "admin", "--disable"], "admin is the last admin; make another user"),
        (
            ["user", "admin", "--role", "viewer"],
            "admin is the last admin; make another user",
        ),
    ],
)
def test_a_refusal_says_what_to_do(run: Any, words: list[str], why: str) -> None:
    code, out, err = run(*words)

    assert (code, out) == (2, "")
    assert why in err


def test_a_user_is_disabled_and_enabled_again(run: Any) -> None:
    run("user", "alice", "--role", "viewer")

    assert run("user", "alice", "--disable")[1] == "alice is viewer, disabled\n"
    assert run("add", "alice")[2] == (
        "loom: user alice is disabled; an admin can enable it again\n"
    )
    assert run("user", "alice", "--enable")[1] == "alice is viewer\n"
    rows = [line.split() for line in run("users")[1].splitlines()[1:]]
    assert rows == [["admin", "admin", "-", "-"], ["alice", "viewer", "-", "-"]]


def test_without_a_plane_the_way_to_one_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens"]) == 1

    assert capsys.readouterr().err == "loom: no plane runs here; `loom up` starts one\n"
