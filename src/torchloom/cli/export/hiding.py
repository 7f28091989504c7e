"""Keep secrets out of a file that is handed on: what is called a token or a password has no value
there."""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_WORDS = r"token|secret|passw(or)?d|api[-_]?key|credentials?|access[-_]?key|private[-_]?key"
_SECRET = re.compile(rf"(?i)(^|[^a-z])({_WORDS})([^a-z]|$)")  # a tokenizer is no token
_IN_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://[^\s/:@]*):[^\s/@]+@")


def hidden(value: Any, name: str = "") -> Any:
    """Return plain data in which secrets by name, and passwords in addresses, are hidden."""
    if isinstance(value, Mapping):
        return {key: hidden(one, str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(one, name) for one in value]
    if not isinstance(value, str):
        return value
    return HIDDEN if _SECRET.search(name) else _IN_URL.sub(rf"\1:{HIDDEN}@", value)
