"""A server elsewhere is believed for its fingerprint: over a real TLS server on loopback."""

import contextlib
import http.server
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.client import trust
from torchloom.client.errors import Unreachable
from torchloom.client.http import Client
from torchloom.client.trust import BadFingerprint, OtherFingerprint
from torchloom.plane.certificates import certificate
from torchloom.plane.nats_server import Certificate

pytestmark = pytest.mark.process


class Shown:
    """Somebody who serves over TLS: what it says is its authority need not be."""

    def __init__(self, known: Certificate, authority: bytes) -> None:
        self.asked: list[tuple[str, str]] = []
        seen = self.asked

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append((self.path, self.headers.get("Authorization", "")))
                body = authority if self.path == "/api/authority" else b'{"user": "a"}'
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):  # it has heard enough
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False  # so that closing it waits for who is being answered
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(known.chain, known.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def known(tmp_path: Path) -> Certificate:
    (tmp_path / "ours").mkdir()
    return certificate(tmp_path / "ours", "127.0.0.1")


@pytest.fixture
def other(tmp_path: Path) -> Certificate:
    (tmp_path / "theirs").mkdir()
    return certificate(tmp_path / "theirs", "127.0.0.1")


@contextlib.contextmanager
def serving(known: Certificate, authority: bytes) -> Iterator[Shown]:
    server = Shown(known, authority)
    try:
        yield server
    finally:
        server.close()


def fingerprint_by_openssl(path: Path) -> str:
    """Return the fingerprint as another program computes it."""
    words = ["openssl", "x509", "-in", str(path), "-noout", "-fingerprint", "-sha256"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout.rpartition("=")[2].strip()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="compares with openssl")
def test_the_right_fingerprint_lets_a_token_through_however_it_is_written(
    known: Certificate,
) -> None:
    written = fingerprint_by_openssl(known.authority)

    with serving(known, known.authority.read_bytes()) as server:
        with Client(server.url, "loom_secret", written) as client:
            assert client.me() == {"user": "a"}

        assert server.asked == [("/api/authority", ""), ("/api/me", "Bearer loom_secret")]
    assert trust.plain(f"SHA256:{written}") == trust.fingerprint(known.authority.read_text())


def test_a_wrong_fingerprint_is_refused_before_a_token_is_sent(
    known: Certificate, other: Certificate
) -> None:
    expected = trust.fingerprint(other.authority.read_text())

    with serving(known, known.authority.read_bytes()) as server:
        with (
            Client(server.url, "loom_secret", expected) as client,
            pytest.raises(OtherFingerprint) as refused,
        ):
            client.me()

        assert server.asked == [("/api/authority", "")]
        found = trust.fingerprint(known.authority.read_text())
        assert str(refused.value) == (
            f"{server.url} shows the fingerprint {found}, not {expected}: another server answers "
            "there, or the plane has a new authority; ask its admin, then run `loom login` again"
        )


def test_whoever_shows_anothers_authority_is_not_believed(
    known: Certificate, other: Certificate
) -> None:
    expected = trust.fingerprint(other.authority.read_text())

    with serving(known, other.authority.read_bytes()) as server:
        with (
            Client(server.url, "loom_secret", expected) as client,
            pytest.raises(Unreachable, match="its certificate is not from the pinned authority"),
        ):
            client.me()

        assert server.asked == [("/api/authority", "")]


def test_an_authority_with_a_second_one_behind_it_has_another_fingerprint(
    known: Certificate, other: Certificate
) -> None:
    both = other.authority.read_bytes() + known.authority.read_bytes()
    expected = trust.fingerprint(other.authority.read_text())

    with serving(known, both) as server:
        with (
            Client(server.url, "loom_secret", expected) as client,
            pytest.raises((OtherFingerprint, Unreachable)),
        ):
            client.me()

        assert server.asked == [("/api/authority", "")]


def test_a_server_that_nobody_vouches_for_is_refused_without_a_fingerprint(
    known: Certificate,
) -> None:
    with serving(known, known.authority.read_bytes()) as server:
        with Client(server.url, "loom_secret") as client, pytest.raises(Unreachable):
            client.me()

        assert server.asked == []


@pytest.mark.parametrize("said", [b"", b"hello", b"\xff\xfe", b"x" * 1_000_000])
def test_what_is_no_certificate_is_refused(known: Certificate, said: bytes) -> None:
    why = "does not publish the authority of its certificate"

    with serving(known, said) as server, pytest.raises(Unreachable, match=why):
        trust.fetch(server.url)


def test_nobody_there_is_said() -> None:
    with pytest.raises(Unreachable, match=r"https://127\.0\.0\.1:1 does not answer"):
        trust.fetch("https://127.0.0.1:1")


@pytest.mark.parametrize("text", ["", "abc", "g" * 64, "a" * 63, "a" * 65])
def test_what_is_no_fingerprint_is_refused_with_where_to_find_one(text: str) -> None:
    with pytest.raises(BadFingerprint, match=r"64 hexadecimal digits.*loom tokens link"):
        trust.plain(text)


def test_a_certificate_for_another_address_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "named").mkdir()
    known = certificate(tmp_path / "named", "127.0.0.2")
    expected = trust.fingerprint(known.authority.read_text())

    with serving(known, known.authority.read_bytes()) as server:
        with Client(server.url, "loom_secret", expected) as client, pytest.raises(Unreachable):
            client.me()

        assert server.asked == [("/api/authority", "")]
