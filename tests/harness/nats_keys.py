"""Keys and JWTs of a NATS server that trusts one operator, made with nothing but ed25519."""

import base64
import json
import os
from dataclasses import dataclass
from typing import Any

import nkeys

SEEDS = {"operator": nkeys.PREFIX_BYTE_OPERATOR, "account": nkeys.PREFIX_BYTE_ACCOUNT}
SEEDS["user"] = nkeys.PREFIX_BYTE_USER


@dataclass(frozen=True, slots=True)
class Pair:
    """A key pair, as text."""

    seed: str
    public: str

    @classmethod
    def new(cls, kind: str) -> "Pair":
        seed = nkeys.encode_seed(os.urandom(32), SEEDS[kind])
        return cls(seed.decode(), nkeys.from_seed(bytearray(seed)).public_key.decode())


def jwt(issuer: Pair, subject: str, name: str, claims: dict[str, Any]) -> str:
    """Return a claim about a key, signed."""
    body = {"jti": name, "iat": 0, "iss": issuer.public, "name": name, "sub": subject}
    text = ".".join(
        _base64(json.dumps(part).encode())
        for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, {**body, "nats": claims})
    )
    signed = nkeys.from_seed(bytearray(issuer.seed.encode())).sign(text.encode())
    return f"{text}.{_base64(signed)}"


class Authority:
    """An operator with one account: what a server's config needs, and users of it."""

    def __init__(self) -> None:
        operator, self._account = Pair.new("operator"), Pair.new("account")
        trusted = jwt(operator, operator.public, "test", {"type": "operator", "version": 2})
        anything = dict.fromkeys(("subs", "conn", "data", "payload", "imports", "exports"), -1)
        account = {"limits": anything, "type": "account", "version": 2}
        listed = jwt(operator, self._account.public, "plane", account)
        self.config = (
            f"operator: {trusted}\nresolver: MEMORY\n"
            f"resolver_preload: {{ {self._account.public}: {listed} }}"
        )

    def user(self, publish: tuple[str, ...], subscribe: tuple[str, ...]) -> tuple[str, str]:
        """Return the JWT and the seed of a user with these rights."""
        pair = Pair.new("user")
        rights = {"pub": {"allow": list(publish)}, "sub": {"allow": list(subscribe)}}
        limits = {"subs": -1, "data": -1, "payload": -1}
        claims = {**rights, **limits, "type": "user", "version": 2}
        return jwt(self._account, pair.public, "user", claims), pair.seed


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
