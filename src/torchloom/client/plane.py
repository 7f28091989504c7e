"""The plane of this user on this host, as a command or a program sees it: find, ask, watch, start.

Everything here blocks, needs the standard library alone and is imported in a few milliseconds.
"""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torchloom import settings
from torchloom.client import calls, places
from torchloom.client.errors import NoPlane, PlaneForeign, PlaneLost, PlaneSilent
from torchloom.unix import hear, is_private, say

if TYPE_CHECKING:
    import socket

PATIENCE = 30.0  # seconds for an answer, or for a plane to be up
_RESTART = 5.0  # seconds that a weaver may take to come back
_WORTH_A_LOOK = 0.02
_AGAIN = 0.2  # seconds before a question that was lost is asked again
_SOON = 3.0  # seconds after which a caller that waits says so
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
        if not is_private(places.folder()):
            return ""
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


def settle(
    name: str,
    on_wait: Callable[[str], None],
    timeout: float | None = PATIENCE,
    soon: float | None = _SOON,
    **facts: Any,
) -> Any:
    """Ask for a change, again and again until its outcome is known; return the answer.

    `key` or `id` among the facts has the weaver do it once, however often it is asked. A plane that
    ended meanwhile is started again. `on_wait` is called with the reason whenever the answer takes
    long; it may raise.
    """
    asked, was_there = calls.question(name, facts), False
    while True:
        try:
            with _weaver(timeout) as channel:
                was_there = True
                return _answer_in_time(channel, asked, on_wait, soon)
        except PlaneForeign:
            raise
        except PlaneLost as error:
            on_wait(_why(error))
        except NoPlane:
            if not (was_there and settings.wants_plane()):
                raise
            _start_again(on_wait)
        time.sleep(_AGAIN)


def _start_again(on_wait: Callable[[str], None]) -> None:
    try:
        find_or_start()
    except PlaneLost as error:
        on_wait(_why(error))


def _answer_in_time(
    channel: "socket.socket",
    asked: dict[str, Any],
    on_wait: Callable[[str], None],
    soon: float | None,
) -> Any:
    """Ask over an open connection; say so once when the answer does not come soon."""
    import select

    if soon is None:
        return calls.answer(channel, asked)
    calls.send(channel, asked)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    if not poll.poll(soon * 1000):
        on_wait(f"the plane has not answered {asked['ask']!r} for {soon:.0f} s")
    return calls.receive(channel, asked)


def _why(error: PlaneLost) -> str:
    return str(error).partition(";")[0]


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

    if settings.has_plane_above():
        return None
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
            f"`LOOM_HOME={found['home']} loom down` ends it"
        )
    return found


def _weaver(timeout: float | None) -> "socket.socket":
    """Call the weaver; while the plane starts it again, wait a moment."""
    deadline = time.monotonic() + _RESTART
    while True:
        try:
            return calls.call(places.door(), timeout)
        except PermissionError as error:
            raise PlaneForeign(str(error)) from error
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
