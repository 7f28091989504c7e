"""Column types that hold the same on SQLite and on Postgres."""

import json
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect


class Words(sa.TypeDecorator[str]):
    """Text from anywhere: what a database would refuse (NUL, half a surrogate) is replaced."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else clean(value)


class JsonText(sa.TypeDecorator[Any]):
    """JSON kept as text: NaN and escapes survive, which Postgres' own type refuses."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        return pack(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # an INTEGER key grows by itself


def clean(text: str) -> str:
    """Return text that every database takes."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def pack(value: Any) -> str:
    """Return a value as JSON of plain letters."""
    return json.dumps(value, separators=(",", ":"))
