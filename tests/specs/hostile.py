"""Specs that must be refused, by class: types, ranges, sizes, depth, injection, encodings.

`hostile.jsonl` has a line for each: its name, the field that is at fault, and its content. Content
is a text or a list of parts: a text, `[text, times]`, or `[text, times, separator]`, where `{n}`
and `{indent}` in the text grow from one repetition to the next.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).with_suffix(".jsonl")


@dataclass(frozen=True, slots=True)
class HostileSpec:
    """A spec as it is sent, and what is wrong with it; some are megabytes, made when asked for."""

    name: str
    field: str
    parts: str | Sequence[Any]

    @property
    def content(self) -> bytes:
        parts = [self.parts] if isinstance(self.parts, str) else self.parts
        text = "".join(part if isinstance(part, str) else _repeated(*part) for part in parts)
        return text.encode(errors="surrogateescape")


def read_table() -> dict[str, HostileSpec]:
    """Return all hostile specs by their names."""
    rows = [json.loads(line) for line in _TABLE.read_text().splitlines()]
    return {row["name"]: HostileSpec(row["name"], row["field"], row["content"]) for row in rows}


def _repeated(text: str, times: int, separator: str = "") -> str:
    if "{" not in text:
        return separator.join([text] * times)
    numbered = (text.replace("{n}", str(n)).replace("{indent}", " " * n) for n in range(times))
    return separator.join(numbered)
