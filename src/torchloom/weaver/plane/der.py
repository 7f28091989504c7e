"""As much of ASN.1's binary form as a certificate for an Ed25519 key takes, and no more."""

import base64
import textwrap
from datetime import datetime

ED25519 = "1.3.101.112"


def tagged(tag: int, *contents: bytes) -> bytes:
    """Return one element: tag, length, contents."""
    body = b"".join(contents)
    size = len(body)
    if size < 0x80:
        return bytes([tag, size]) + body
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + body


def sequence(*contents: bytes) -> bytes:
    return tagged(0x30, *contents)


def integer(value: int) -> bytes:
    return tagged(0x02, value.to_bytes(value.bit_length() // 8 + 1))


def octets(data: bytes) -> bytes:
    return tagged(0x04, data)


def bits(data: bytes, unused: int = 0) -> bytes:
    return tagged(0x03, bytes([unused]), data)


def true() -> bytes:
    return tagged(0x01, b"\xff")


def text(value: str) -> bytes:
    return tagged(0x0C, value.encode())


def instant(when: datetime) -> bytes:
    """Return a point in time, given in UTC; the form changes with the year 2050."""
    if when.year < 2050:
        return tagged(0x17, f"{when:%y%m%d%H%M%SZ}".encode())
    return tagged(0x18, f"{when:%Y%m%d%H%M%SZ}".encode())


def identifier(dotted: str) -> bytes:
    """Return the name of a thing as a path of numbers, each in groups of seven bits."""
    first, second, *rest = map(int, dotted.split("."))
    return tagged(0x06, b"".join(map(_groups, (40 * first + second, *rest))))


def pem(label: str, data: bytes) -> str:
    """Return data as the lines of text that files of keys and certificates hold."""
    lines = "\n".join(textwrap.wrap(base64.b64encode(data).decode(), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"


def _groups(number: int) -> bytes:
    groups = [number & 0x7F]
    while number := number >> 7:
        groups.append(0x80 | number & 0x7F)
    return bytes(reversed(groups))
