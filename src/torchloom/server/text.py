"""Whole letters: half of a pair, as broken names and outputs have it, cannot be sent as UTF-8."""

import json
from typing import Any


def whole(value: Any) -> Any:
    """Return plain data in which halves of letters are replaced; most often it has none."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.loads(text.encode("utf-8", "replace"))
    return value
