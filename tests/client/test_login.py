"""`loom login`: a plane is chosen once its fingerprint was compared, by a link or a token."""

import asyncio
import json
import os
import pty
import select
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from torchloom.client import Client
from torchloom.client.http import BadUrl, Refused, address
from torchloom.client.trust import fingerprint
from torchloom.plane.certificates import certificate

from ..harness.server_plane import Plane, Server, running
from ..plane.conftest import as_nobody

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with running(tmp_path_factory.mktemp("plane")) as started:
        yield started


@pytest.fixture(scope="module")
def server(plane: Plane) -> Server:
    made = certificate(plane.home / "plane", "127.0.0.1")
    shown = zip(
        ("--tls-cert", "--tls-key", "--tls-ca"),
        (made.chain, made.key, made.authority),
        strict=True,
    )
    return plane.start_server(*(str(word) for pair in shown for word in pair))


@pytest.fixture(scope="module")
def known(plane: Plane) -> str:
    return fingerprint((plane.home / "plane" / "authority" / "ca.pem").read_text())


class Person:
    """Somebody on another host: a home of their own, and `loom`."""

    def __init__(self, home: Path) -> None:
        self.home = home / "loom"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("LOOM_")}
        self.env |= {"HOME": str(home), "LOOM_HOME": str(self.home), "LOOM_PLANE": "0"}
        self.env["XDG_RUNTIME_DIR"] = str(home)

    def loom(self, *words: str, said: str = "") -> tuple[int, str, str]:
        command = [sys.executable, "-m", "torchloom", *words]
        done = subprocess.run(
            command, input=said, env=self.env, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr

    @property
    def kept(self) -> Path:
        return self.home / "login.json"


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def ask(plane: Plane, name: str, **facts: Any) -> Any:
    return asyncio.run(plane.ask(name, author="admin", **facts))


def link(plane: Plane, server: Server, user: str = "alice", role: str = "viewer") -> str:
    ask(plane, "user_put", user=user, role=role)
    return f"{server.url}/login#{ask(plane, 'link_add', user=user)['code']}"


def token(plane: Plane, user: str, role: str) -> tuple[str, str]:
    ask(plane, "user_put", user=user, role=role)
    made = ask(plane, "token_add", user=user, label="test")
    return made["id"], made["token"]


def test_a_link_is_exchanged_for_a_token_that_is_kept_for_its_owner_alone(
    plane: Plane, server: Server, known: str, person: Person
) -> None:
    given = link(plane, server)

    first = person.loom("login", server.url, "--fingerprint", known, said=f"{given}\n")
    second = Person(person.home.parent / "b").loom(
        "login", server.url, "--fingerprint", known, said=given
    )

    assert first == (0, f"{server.url} as alice (viewer)\n", "")
    assert stat.S_IMODE(person.kept.stat().st_mode) == 0o600
    kept = json.loads(person.kept.read_text())
    assert (kept["url"], kept["fingerprint"]) == (server.url, known)
    assert given.partition("#")[2] not in person.kept.read_text()
    assert person.loom("login") == first
    shown = json.loads(person.loom("login", "--json")[1])
    assert shown == {"url": server.url, "user": "alice", "role": "viewer", "fingerprint": known}
    code, out, err = second
    assert (code, out) == (2, "")
    assert err.startswith("loom: this link was already used; a link works once; ask an admin")


def test_a_wrong_fingerprint_is_refused_and_the_link_is_still_good(
    plane: Plane, server: Server, known: str, person: Person
) -> None:
    given, wrong = link(plane, server), "0" * 64

    code, out, err = person.loom("login", server.url, "--fingerprint", wrong, said=given)

    assert (code, out) == (1, "")
    assert f"shows the fingerprint {known}, not {wrong}" in err
    assert not person.kept.exists()
    assert person.loom("login", server.url, "--fingerprint", known, said=given)[0] == 0


def test_without_a_fingerprint_and_a_person_to_ask_it_is_shown_and_nothing_sent(
    plane: Plane, server: Server, known: str, person: Person
) -> None:
    given = link(plane, server)

    code, out, err = person.loom("login", server.url, said=given)

    assert (code, out) == (2, "")
    assert f"loom login {server.url} --fingerprint {known}" in err
    assert not person.kept.exists()
    assert person.loom("login", server.url, "--fingerprint", known, said=given)[0] == 0


def test_on_a_terminal_a_person_compares_and_what_is_typed_is_not_shown(
    plane: Plane, server: Server, known: str, person: Person
) -> None:
    given = link(plane, server)

    seen = on_terminal(person, ["login", server.url], [("[y/N]", "y"), ("token:", given)])

    assert f"has the fingerprint {known}" in seen
    assert given.partition("#")[2] not in seen
    assert f"{server.url} as alice (viewer)" in seen


def test_a_person_who_says_no_sends_nothing(plane: Plane, server: Server, person: Person) -> None:
    seen = on_terminal(person, ["login", server.url], [("[y/N]", "n")])

    assert "not trusted, nothing was sent" in seen
    assert not person.kept.exists()


def test_a_token_is_taken_from_standard_input(
    plane: Plane, server: Server, known: str, person: Person
) -> None:
    token_id, secret = token(plane, "bob", "operator")

    code, out, _ = person.loom("login", server.url, "--fingerprint", known, said=f"{secret}\n")
    assert (code, out) == (0, f"{server.url} as bob (operator)\n")

    ask(plane, "token_revoke", id=token_id)
    time.sleep(0)
    deadline = time.monotonic() + 10
    while (after := person.loom("login"))[0] == 0 and time.monotonic() < deadline:
        pass
    assert after[0] == 2
    assert after[2].startswith("loom: no token, or an unknown one")


@pytest.mark.parametrize("secret", ["loom_abcdef", "https://h:1/login#abcdef"])
def test_a_secret_in_the_command_line_is_refused_with_the_remedy(
    person: Person, secret: str
) -> None:
    code, out, err = person.loom("login", secret)

    assert (code, out) == (2, "")
    assert "can be read by every user of this host" in err
    assert "`loom login URL` asks for it, or reads it from standard input" in err
    assert "abcdef" not in err
    assert not person.kept.exists()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("", "nothing was given; paste a link or a token"),
        ("loom_wrong", "no token, or an unknown one"),
        ("nonsense", "no such link"),
        ("https://elsewhere:1/login#code", "is a link to another plane"),
    ],
)
def test_what_lets_nobody_in_is_refused_and_not_kept(
    server: Server, known: str, person: Person, said: str, why: str
) -> None:
    code, out, err = person.loom("login", server.url, "--fingerprint", known, said=said)

    assert (code, out) == (2, "")
    assert why in err
    assert not person.kept.exists()


def test_the_plane_of_this_host_is_used_again_when_the_other_is_forgotten(
    plane: Plane, server: Server, known: str, person: Person
) -> None:
    person.loom("login", server.url, "--fingerprint", known, said=link(plane, server))

    assert person.loom("login", "--forget") == (0, "the plane of this host\n", "")
    assert person.loom("login", "--forget") == (0, "not logged in to another plane\n", "")
    assert person.loom("login") == (0, "the plane of this host\n", "")


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")
def test_another_user_cannot_read_what_is_kept(
    plane: Plane, server: Server, known: str, person: Person
) -> None:
    before = os.umask(0)
    try:
        person.loom("login", server.url, "--fingerprint", known, said=link(plane, server))
    finally:
        os.umask(before)
    person.kept.parent.chmod(0o755)

    def read() -> str:
        try:
            return person.kept.read_text()
        except PermissionError:
            return "refused"

    assert as_nobody(read) == "refused"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.chmod(0o644),
        lambda path: path.write_text("{"),
        lambda path: path.write_text('{"url": 1, "token": 2}'),
        lambda path: path.write_text('{"colour": "blue"}'),
    ],
)
def test_a_file_that_others_could_read_or_that_is_damaged_is_not_used(
    person: Person, spoil: Any
) -> None:
    person.home.mkdir(parents=True)
    person.kept.touch(0o600)
    person.kept.write_text('{"url": "http://localhost:1", "token": "loom_x"}')
    spoil(person.kept)

    code, out, err = person.loom("login")

    assert (code, out) == (1, "")
    assert f"cannot use {person.kept}: it " in err
    assert "`loom login URL` writes it again" in err


@pytest.mark.parametrize(
    "url",
    [
        *("http://10.0.0.1:8787", "ftp://localhost", "localhost:8787", "", "https://"),
        *("https://user:pw@host", "https://host/path", "https://host:99999", "https://h?x=1"),
    ],
)
def test_an_address_that_is_none_or_where_a_token_could_be_read_is_refused(url: str) -> None:
    with pytest.raises(BadUrl, match="a plane's address is https://HOST:PORT"):
        address(url)


def test_the_client_shows_what_a_role_may_and_refuses_in_the_planes_words(
    plane: Plane, server: Server, known: str
) -> None:
    _, secret = token(plane, "vera", "viewer")

    with Client(server.url, secret, known) as client:
        assert client.me()["user"] == "vera"
        assert list(client.jobs(state="RUNNING")) == []
        assert list(client.experiments()) == []
        assert client.queue() == []
        with pytest.raises(Refused) as refused:
            client.submit({"name": "x", "script": "train.py"})
        with pytest.raises(Refused, match="no job") as missing:
            client.job("none")

    assert (refused.value.status, refused.value.code) == (403, "forbidden")
    assert str(refused.value).startswith("vera is viewer, and this takes operator; ")
    assert missing.value.status == 404
    assert secret not in repr(client)


def test_over_tls_the_cookie_is_for_tls_alone(plane: Plane, server: Server) -> None:
    code = link(plane, server).partition("#")[2]
    authority = plane.home / "plane" / "authority" / "ca.pem"
    import ssl

    with httpx.Client(verify=ssl.create_default_context(cafile=authority)) as browser:
        answer = browser.post(f"{server.url}/api/login", json={"code": code})

    assert "secure" in answer.headers["set-cookie"].lower()


def on_terminal(person: Person, words: list[str], answers: list[tuple[str, str]]) -> str:
    """Run `loom` on a terminal, answer what it asks, and return all that was to be seen."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(sys.executable, [sys.executable, "-m", "torchloom", *words], person.env)
    seen, waiting, deadline = "", list(answers), time.monotonic() + 60
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            heard = os.read(terminal, 4096)
        except OSError:  # it has ended
            break
        if not heard:
            break
        seen += heard.decode()
        if waiting and waiting[0][0] in seen:
            os.write(terminal, f"{waiting.pop(0)[1]}\n".encode())
    os.waitpid(pid, 0)
    os.close(terminal)
    return seen
