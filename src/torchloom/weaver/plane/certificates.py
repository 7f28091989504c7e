"""How agents of other hosts know the plane's NATS: an authority made once, and what it vouches for.

The authority's certificate travels with an agent's credentials, and no other is believed.
"""

import hashlib
import ipaddress
import os
import shutil
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nacl.signing import SigningKey

from torchloom.errors import UserError, shorten
from torchloom.weaver.plane import der
from torchloom.weaver.plane.credentials import write_secret
from torchloom.weaver.plane.nats_server import Certificate

_AUTHORITY_LIFE, _SERVER_LIFE = timedelta(days=3650), timedelta(days=397)
_SKEW = timedelta(days=1)  # that another host's clock may be behind ours
_NAME, _IDENTIFIER, _USAGE = "2.5.4.3", "2.5.29.14", "2.5.29.15"
_ALTERNATIVES, _CONSTRAINTS, _ISSUER = "2.5.29.17", "2.5.29.19", "2.5.29.35"
_PURPOSES, _SERVES = "2.5.29.37", "1.3.6.1.5.5.7.3.1"
_DIGITAL_SIGNATURE, _SIGNS_CERTIFICATES = der.bits(b"\x80", 7), der.bits(b"\x04", 2)


class BadHost(UserError):
    """What was given as an address cannot be listened at."""

    code = "bad_host"

    def __init__(self, host: str, why: str) -> None:
        super().__init__(f"cannot listen at {shorten(host)!r}: {why}; give one of this host's own")


def certificate(folder: Path, host: str) -> Certificate:
    """Return what a server at this address shows: a fresh certificate of our own authority."""
    addresses = check_host(host)
    authority_key, authority = _authority(folder / "authority")
    key = SigningKey.generate()
    chain = _signed(
        authority_key, "torchloom authority", host, key, _SERVER_LIFE, _server(host, addresses)
    )
    made = Certificate(folder / "server.pem", folder / "server.key", authority)
    write_secret(made.chain, der.pem("CERTIFICATE", chain))
    write_secret(made.key, _private(key))
    return made


def fingerprint(authority: Path) -> str:
    """Return by what people compare an authority: the SHA-256 of its certificate."""
    import ssl

    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority.read_text())).hexdigest()


def check_host(host: str) -> list[str]:
    """Return the addresses of a name of this host; all addresses at once are never listened at."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        addresses = sorted({str(entry[4][0]) for entry in found})
        for family, kind, _, _, address in found:
            if ipaddress.ip_address(str(address[0])).is_unspecified:
                raise BadHost(host, "that is every address at once")
            with socket.socket(family, kind) as probe:
                probe.bind(address)
    except OSError as error:
        raise BadHost(host, error.strerror or str(error)) from error
    return addresses


def _authority(folder: Path) -> tuple[SigningKey, Path]:
    """Return the authority's key and certificate; made at first, both or none."""
    if not folder.exists():
        aside = folder.with_name(f"authority.new-{os.getpid()}")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(mode=0o700)
        key = SigningKey.generate()
        name = "torchloom authority"
        made = _signed(key, name, name, key, _AUTHORITY_LIFE, _vouching(key))
        write_secret(aside / "seed", bytes(key).hex())
        write_secret(aside / "ca.pem", der.pem("CERTIFICATE", made))
        aside.rename(folder)
    return SigningKey(bytes.fromhex((folder / "seed").read_text())), folder / "ca.pem"


def _signed(
    issuer_key: SigningKey,
    issuer: str,
    subject: str,
    key: SigningKey,
    life: timedelta,
    extensions: list[bytes],
) -> bytes:
    """Return a certificate: that the issuer says this key is the subject's."""
    algorithm = der.sequence(der.identifier(der.ED25519))
    now = datetime.now(UTC)
    known_by = der.sequence(der.tagged(0x80, _digest(issuer_key)))
    body = der.sequence(
        der.tagged(0xA0, der.integer(2)),  # version 3
        der.integer(int.from_bytes(os.urandom(16)) >> 1),
        algorithm,
        _name(issuer),
        der.sequence(der.instant(now - _SKEW), der.instant(now + life)),
        _name(subject),
        der.sequence(algorithm, der.bits(bytes(key.verify_key))),
        der.tagged(0xA3, der.sequence(_extension(_ISSUER, known_by), *extensions)),
    )
    return der.sequence(body, algorithm, der.bits(issuer_key.sign(body).signature))


def _vouching(key: SigningKey) -> list[bytes]:
    return [
        _extension(_CONSTRAINTS, der.sequence(der.true()), critical=True),
        _extension(_USAGE, _SIGNS_CERTIFICATES, critical=True),
        _extension(_IDENTIFIER, der.octets(_digest(key))),
    ]


def _server(host: str, addresses: list[str]) -> list[bytes]:
    packed = (ipaddress.ip_address(address).packed for address in addresses)
    names = [der.tagged(0x87, address) for address in packed]
    if host not in addresses:
        names.append(der.tagged(0x82, host.encode("idna")))
    return [
        _extension(_CONSTRAINTS, der.sequence(), critical=True),
        _extension(_USAGE, _DIGITAL_SIGNATURE, critical=True),
        _extension(_PURPOSES, der.sequence(der.identifier(_SERVES))),
        _extension(_ALTERNATIVES, der.sequence(*names)),
    ]


def _extension(name: str, value: bytes, critical: bool = False) -> bytes:
    urgent = [der.true()] if critical else []
    return der.sequence(der.identifier(name), *urgent, der.octets(value))


def _name(common: str) -> bytes:
    pair = der.sequence(der.identifier(_NAME), der.text(common))
    return der.sequence(der.tagged(0x31, pair))


def _digest(key: SigningKey) -> bytes:
    return hashlib.sha256(bytes(key.verify_key)).digest()[:20]


def _private(key: SigningKey) -> str:
    algorithm = der.sequence(der.identifier(der.ED25519))
    inner = der.octets(der.octets(bytes(key)))
    return der.pem("PRIVATE KEY", der.sequence(der.integer(0), algorithm, inner))
