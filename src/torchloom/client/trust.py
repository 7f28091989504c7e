"""Trust in a server on another host: its authority, whose fingerprint a person compared once."""

import hashlib
import hmac
import re
from typing import TYPE_CHECKING

from torchloom.client.errors import Unreachable
from torchloom.errors import Failure, UserError, shorten

if TYPE_CHECKING:
    import ssl

_LONGEST = 65_536  # letters of a certificate
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


class BadFingerprint(UserError):
    """What was given as a fingerprint is none."""

    code = "bad_fingerprint"

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{shorten(text)!r} is not a fingerprint; a fingerprint is 64 hexadecimal digits, "
            "which `loom tokens link USER` shows next to the link"
        )


class OtherFingerprint(Failure):
    """The server there is not the one that was expected."""

    code = "other_fingerprint"

    def __init__(self, url: str, expected: str, found: str) -> None:
        super().__init__(
            f"{url} shows the fingerprint {found}, not {expected}: another server answers there, "
            "or the plane has a new authority; ask its admin, then run `loom login` again"
        )


def fingerprint(authority: str) -> str:
    """Return the SHA-256 of a certificate, by which people compare it."""
    import ssl

    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority)).hexdigest()


def plain(text: str) -> str:
    """Return a fingerprint as it is compared, however a person wrote it."""
    found = text.strip().lower().removeprefix("sha256:").replace(":", "").replace(" ", "")
    if not _FINGERPRINT.fullmatch(found):
        raise BadFingerprint(text)
    return found


def fetch(url: str, timeout: float = 10.0) -> str:
    """Return the authority of a server; it is not trusted until its fingerprint is compared.

    No token is sent over this connection. What is received is trusted for its fingerprint alone.
    """
    import httpx

    try:
        with (
            httpx.Client(verify=_unverified(), timeout=timeout, trust_env=False) as client,
            client.stream("GET", f"{url}/api/authority") as answer,
        ):
            found = next(answer.iter_bytes(_LONGEST), b"") if answer.status_code == 200 else b""
    except httpx.HTTPError as error:
        raise Unreachable(f"{url} does not answer: {error or type(error).__name__}") from error
    try:
        text = found.decode("ascii")
        fingerprint(text)
    except ValueError as error:
        raise Unreachable(f"{url} does not publish the authority of its certificate") from error
    return text


def checked(url: str, authority: str, expected: str) -> str:
    """Return an authority that has the fingerprint that is expected."""
    found = fingerprint(authority)
    if not hmac.compare_digest(found, plain(expected)):
        raise OtherFingerprint(url, plain(expected), found)
    return authority


def context(authority: str) -> "ssl.SSLContext":
    """Return a TLS context that trusts this authority and no other."""
    import ssl

    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks names and certificates
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.load_verify_locations(cadata=ssl.PEM_cert_to_DER_cert(authority))
    return made


def _unverified() -> "ssl.SSLContext":
    import ssl

    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made
