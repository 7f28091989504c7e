"""The plane of this user on this host, as a command or a program sees it: find, ask, watch, start.

Everything here blocks, needs the standard library alone and is imported in a few milliseconds.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torchloom import settings
from torchloom.client import calls, places
from torchloom.client.errors import NoPlane, PlaneLost, PlaneSilent
from torchloom.unix import hear, say

if TYPE_CHECKING:
    import socket

PATIENCE = 30.0  # seconds for an answer, or for a plane to be up
_RESTART = 5.0  # seconds that a weaver may take to come back
_WORTH_A_LOOK = 0.02
_SHAPE = ("url", "nats", "host", "pid", "started_at", "token_file")


def find() -> dict[str, Any] | None:
    """Return how this user's plane is, or nothing when none runs here."""
    try:
        with calls.call(places.control(), PATIENCE) as channel:
            return _checked(calls.answer(channel, calls.question("status", {})))
    except PlaneSilent:
        raise
    except (OSError, PlaneLost):  # not there, or on its way out
        return None


def page_of(job: str) -> str:
    """Return the address of a job's page; nothing where this user's plane serves none here.

    Nothing is asked: a server that answers has said so in its card.
    """
    import json
    import os
    from urllib.parse import quote

    try:
        card = json.loads(places.card().read_text())
        os.kill(int(card["pid"]), 0)
        return f"{card['url']}/jobs/{quote(job, safe='')}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def shape(found: dict[str, Any]) -> dict[str, Any]:
    """Return of how a plane is what `loom up --status --json` prints."""
    return {name: found[name] for name in _SHAPE}


def tell(name: str, timeout: float | None = PATIENCE, **facts: Any) -> Any:
    """Ask the process that keeps the plane alive: `status`, `ready`, `leave`."""
    try:
        channel = calls.call(places.control(), PATIENCE)
    except OSError as error:
        raise NoPlane from error
    with channel:
        return calls.answer(channel, calls.question(name, facts))


def ask(name: str, timeout: float | None = PATIENCE, **facts: Any) -> Any:
    """Ask the weaver and return its answer; what it refuses is raised in its own words."""
    with _weaver(timeout) as channel:
        return calls.answer(channel, calls.question(name, facts))


def watch(name: str = "watch", **facts: Any) -> Iterator[dict[str, Any]]:
    """Ask the weaver for what happens and yield it, event by event, until it ends the stream."""
    with _weaver(None) as channel:
        try:
            say(channel, calls.question(name, facts))
            while (said := hear(channel)) is not None:
                if "event" not in said:
                    calls.unpacked(said)
                    return
                yield said["event"]
        except (OSError, ValueError) as error:
            raise PlaneLost(f"the plane went away: {error}") from error
    raise PlaneLost("the plane went away")


def leave(timeout: float = PATIENCE) -> bool:
    """End the plane and come back when it is gone; false when none was there."""
    try:
        channel = calls.call(places.control(), PATIENCE)
    except OSError:
        return False
    with channel:
        try:
            say(channel, calls.question("leave", {}))
            while hear(channel) is not None:
                pass
        except TimeoutError:
            raise PlaneLost(f"the plane did not leave within {timeout:.0f} s") from None
        except (OSError, ValueError):  # it is gone
            pass
    return True


def find_or_start(wait: bool = True, **wishes: Any) -> dict[str, Any] | None:
    """Return how the plane is, after starting one in the background where there is none.

    Without `wait` nothing is returned and nobody waits: a plane that is not there is on its way.
    """
    from torchloom.client import starting

    try:
        with calls.call(places.control(), PATIENCE) as channel:
            if not wait:
                return None
            _checked(calls.answer(channel, calls.question("status", {})))
            calls.answer(channel, calls.question("ready", wishes))
    except PlaneSilent:
        raise
    except (OSError, PlaneLost):  # there is none, or it was on its way out
        starting.start(wait, wishes)
    return find() if wait else None


def _checked(found: dict[str, Any]) -> dict[str, Any]:
    """Return how a plane is, if it is the one of our state folder."""
    if (home := str(settings.loom_home())) != found["home"]:
        raise NoPlane(
            f"the plane in {places.folder()} is that of {found['home']}, not of {home}; "
            "`loom down` there ends it, or another XDG_RUNTIME_DIR gives each its own"
        )
    return found


def _weaver(timeout: float | None) -> "socket.socket":
    """Call the weaver; while the plane starts it again, wait a moment."""
    import time

    deadline = time.monotonic() + _RESTART
    while True:
        try:
            return calls.call(places.door(), timeout)
        except PermissionError as error:
            raise PlaneLost(str(error)) from error
        except OSError as error:
            if not _lives():
                raise NoPlane from error
            if time.monotonic() > deadline:
                raise PlaneLost(f"the weaver does not answer: {error}") from error
        time.sleep(_WORTH_A_LOOK)


def _lives() -> bool:
    try:
        calls.call(places.control(), PATIENCE).close()
    except OSError:
        return False
    return True
