"""How other hosts know the plane's servers: an authority made once, and what it vouches for.

The authority's certificate is sent with an agent's credentials, and no other is trusted. Keys are
of the one kind that every browser takes, too (ECDSA on P-256).
"""

import ipaddress
import os
import shutil
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from torchloom.errors import UserError, shorten
from torchloom.plane.credentials import write_secret
from torchloom.plane.nats_server import Certificate

Key: TypeAlias = ec.EllipticCurvePrivateKey

_AUTHORITY_LIFETIME, _SERVER_LIFETIME = timedelta(days=3650), timedelta(days=397)
_SKEW = timedelta(days=1)  # that another host's clock may be behind ours
_NAME = "torchloom authority"


class BadHost(UserError):
    """A server cannot listen at this address."""

    code = "bad_host"

    def __init__(self, host: str, why: str) -> None:
        super().__init__(f"cannot listen at {shorten(host)!r}: {why}; give one of this host's own")


def certificate(folder: Path, host: str) -> Certificate:
    """Return a fresh certificate of our own authority for a server at this address."""
    addresses = check_host(host)
    authority_key, authority = _authority(folder / "authority")
    key = ec.generate_private_key(ec.SECP256R1())
    chain = _for_server(_drafted(host, key, _SERVER_LIFETIME, authority_key), host, addresses)
    made = Certificate(folder / "server.pem", folder / "server.key", authority)
    write_secret(made.chain, _signed(chain, authority_key))
    write_secret(made.key, _private(key))
    return made


def check_host(host: str) -> list[str]:
    """Return the addresses of a name of this host; the wildcard address is refused."""
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


def _authority(folder: Path) -> tuple[Key, Path]:
    """Return the authority's key and certificate; both are made at the first start."""
    if not folder.exists():
        aside = folder.with_name(f"authority.new-{os.getpid()}")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(mode=0o700)
        made = ec.generate_private_key(ec.SECP256R1())
        draft = _for_authority(_drafted(_NAME, made, _AUTHORITY_LIFETIME, made), made)
        write_secret(aside / "ca.key", _private(made))
        write_secret(aside / "ca.pem", _signed(draft, made))
        aside.rename(folder)
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key, folder / "ca.pem"


def _drafted(subject: str, key: Key, lifetime: timedelta, issuer: Key) -> x509.CertificateBuilder:
    """Return the builder of a certificate in which the issuer certifies the subject's key."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(_name(_NAME), _name(subject), key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False
        )
    )


def _for_authority(draft: x509.CertificateBuilder, key: Key) -> x509.CertificateBuilder:
    known_by = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        draft.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(vouches=True), critical=True)
        .add_extension(known_by, critical=False)
    )


def _for_server(
    draft: x509.CertificateBuilder, host: str, addresses: list[str]
) -> x509.CertificateBuilder:
    names: list[x509.GeneralName] = [
        x509.IPAddress(ipaddress.ip_address(address)) for address in addresses
    ]
    if host not in addresses:
        names.append(x509.DNSName(host.encode("idna").decode()))
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    return (
        draft.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(vouches=False), critical=True)
        .add_extension(purpose, critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )


def _usage(vouches: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not vouches,
        key_cert_sign=vouches,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _signed(draft: x509.CertificateBuilder, issuer: Key) -> str:
    made = draft.sign(issuer, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


def _private(key: Key) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
