"""Text that UTF-8 can encode: broken names and outputs may have lone surrogates."""

import json
from typing import Any


def whole(value: Any) -> Any:
    """Return plain data with lone surrogates replaced; most data has none."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.loads(text.encode("utf-8", "replace"))
    return value
