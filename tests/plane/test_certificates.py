"""What a server shows to other hosts is believed by real TLS, for its own address alone."""

import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from torchloom.client.trust import fingerprint
from torchloom.plane.certificates import BadHost, certificate, check_host
from torchloom.plane.nats_server import Certificate


def handshake(made: Certificate, authority: Path, name: str) -> str:
    """Return which protocol the two agree on, or why they do not."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.chain, made.key)
    client = ssl.create_default_context(cafile=authority)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=name) as channel:
            return channel.version() or ""
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    finally:
        ours.close()
        thread.join()


def test_a_certificate_is_believed_for_its_address_and_by_its_authority(tmp_path: Path) -> None:
    made = certificate(tmp_path, "127.0.0.2")
    (tmp_path / "other").mkdir()
    other = certificate(tmp_path / "other", "127.0.0.2")

    assert handshake(made, made.authority, "127.0.0.2") == "TLSv1.3"
    assert "mismatch" in handshake(made, made.authority, "127.0.0.3")
    assert "unable to get" in handshake(made, other.authority, "127.0.0.2")


def test_a_name_is_vouched_for_with_its_addresses(tmp_path: Path) -> None:
    made = certificate(tmp_path, "localhost")

    assert handshake(made, made.authority, "localhost") == "TLSv1.3"
    assert handshake(made, made.authority, "127.0.0.1") == "TLSv1.3"


def test_the_authority_is_made_once_and_the_rest_anew(tmp_path: Path) -> None:
    first = certificate(tmp_path, "127.0.0.2")
    before = fingerprint(first.authority.read_text()), first.chain.read_text()

    second = certificate(tmp_path, "127.0.0.3")

    assert fingerprint(second.authority.read_text()) == before[0]
    assert second.chain.read_text() != before[1]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()} == {
        0o600
    }


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
def test_openssl_reads_what_we_wrote(tmp_path: Path) -> None:
    made = certificate(tmp_path, "127.0.0.2")

    words = ["openssl", "verify", "-x509_strict", "-CAfile", made.authority, made.chain]
    done = subprocess.run(words, capture_output=True, text=True)

    assert (done.stdout, done.returncode) == (f"{made.chain}: OK\n", 0)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_ours_or_is_all_of_them_is_refused(host: str) -> None:
    with pytest.raises(BadHost, match=r"cannot listen at .*give one of this host's own"):
        check_host(host)
