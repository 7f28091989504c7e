"""The signed words by which NATS knows an operator, an account and its users.

A token is a JWT whose algorithm is NATS' own: Ed25519 by the key of whoever vouches, and keys as
base32 text whose first letter says whose they are.
"""

import base64
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import nkeys

_UNLIMITED = -1
_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
_VERSION = 2  # of the claims
_PUBLIC = 56  # letters of a public key


def operator_seed() -> str:
    """Return a new key of an operator, the secret half."""
    return _seed(nkeys.PREFIX_BYTE_OPERATOR)


def account_seed() -> str:
    """Return a new key of an account, the secret half."""
    return _seed(nkeys.PREFIX_BYTE_ACCOUNT)


def public(seed: str) -> str:
    """Return the public half of a key."""
    key: bytes = nkeys.from_seed(bytearray(seed, "ascii")).public_key
    return key.decode()


def sign(seed: str, data: bytes) -> bytes:
    """Return the signature of data by the key that a seed stands for."""
    signature: bytes = nkeys.from_seed(bytearray(seed, "ascii")).sign(data)
    return signature


def operator_token(operator: str, name: str) -> str:
    """Return the token by which an operator vouches for itself."""
    return _token(operator, public(operator), name, {"type": "operator"})


def account_token(operator: str, account: str, name: str) -> str:
    """Return the token by which an operator vouches for an account; nothing in it is limited."""
    limits = dict.fromkeys(
        ("subs", "data", "payload", "imports", "exports", "conn", "leaf"), _UNLIMITED
    )
    facts = {"type": "account", "limits": {**limits, "wildcards": True}}
    return _token(operator, public(account), name, facts)


def user_credentials(
    account: str, name: str, rights: Mapping[str, Any], lifetime: float | None = None
) -> str:
    """Return the text of a file by which a new user connects: the account's token and a key."""
    seed = _seed(nkeys.PREFIX_BYTE_USER)
    token = user_token(account, public(seed), name, rights, lifetime)
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def user_token(
    account: str, key: str, name: str, rights: Mapping[str, Any], lifetime: float | None = None
) -> str:
    """Return the token by which an account vouches for a user, known by its public key."""
    limits = dict.fromkeys(("subs", "data", "payload"), _UNLIMITED)
    facts = {"type": "user", "allowed_connection_types": ["STANDARD"], **limits, **rights}
    return _token(account, key, name, facts, lifetime)


def is_user(key: str) -> bool:
    """Tell whether this is the public half of a user's key."""
    try:
        prefix = base64.b32decode(f"{key}{'=' * (-len(key) % 8)}")[0]
    except (ValueError, IndexError):
        return False
    return prefix == nkeys.PREFIX_BYTE_USER and len(key) == _PUBLIC


def rights(publish: Sequence[str], subscribe: Sequence[str]) -> dict[str, Any]:
    """Return what a user may do: exactly this. Where NATS reads silence as all, nothing is said."""
    return {"pub": _only(publish), "sub": _only(subscribe)}


def _only(allowed: Sequence[str]) -> dict[str, list[str]]:
    return {"allow": list(allowed)} if allowed else {"deny": [">"]}


def _seed(prefix: int) -> str:
    seed: bytes = nkeys.encode_seed(os.urandom(32), prefix)
    return seed.decode()


def _token(
    issuer: str, subject: str, name: str, facts: Mapping[str, Any], lifetime: float | None = None
) -> str:
    now = time.time()
    claims = {"iat": int(now), "iss": public(issuer), "name": name, "sub": subject}
    if lifetime is not None:
        claims["exp"] = int(now + lifetime)
    claims["nats"] = {**facts, "version": _VERSION}
    digest = hashlib.sha256(_json(claims)).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    signed = f"{_base64(_json(_HEADER))}.{_base64(_json(claims))}"
    return f"{signed}.{_base64(sign(issuer, signed.encode()))}"


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
