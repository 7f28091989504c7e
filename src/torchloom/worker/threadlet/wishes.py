"""What a job wants done about ranks that hang, as its environment says it."""

import math
import sys
from collections.abc import Mapping

from torchloom.bus.messages import Value

LIMIT_VARIABLE = "LOOM_HANG_LIMIT"  # seconds without progress after which a rank is given up
ACTION_VARIABLE = "LOOM_HANG"
ACTIONS = ("kill", "notify", "off")


def hang_wishes(env: Mapping[str, str]) -> dict[str, Value]:
    """Return the wishes; what makes no sense is noted and is none."""
    wishes: dict[str, Value] = {}
    action, limit = env.get(ACTION_VARIABLE, ""), env.get(LIMIT_VARIABLE, "")
    if action in ACTIONS:
        wishes["action"] = action
    elif action:
        _ignore(ACTION_VARIABLE, action, f"one of {', '.join(ACTIONS)}")
    if limit:
        seconds = _number(limit)
        if seconds > 0:
            wishes["limit"] = seconds
        else:
            _ignore(LIMIT_VARIABLE, limit, "a number of seconds")
    return wishes


def _number(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0


def _ignore(name: str, value: str, wanted: str) -> None:
    sys.stderr.write(f"loom: {name}={value!r} is ignored; it is to be {wanted}\n")
