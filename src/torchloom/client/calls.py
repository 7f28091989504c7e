"""One question over a unix socket of ours, and its answer or answers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchloom.client.errors import PlaneLost, PlaneSilent, from_answer
from torchloom.unix import reachable, receive_message, same_user, send_message

if TYPE_CHECKING:
    import socket

VERSION = 1


def call(path: Path, timeout: float | None) -> "socket.socket":
    """Connect to a process of this user that listens at a path; OSError when none does."""
    import socket

    channel = socket.socket(socket.AF_UNIX)
    try:
        channel.settimeout(timeout)
        with reachable(path) as address:
            channel.connect(address)
        if not same_user(channel):
            raise PermissionError(f"{path} is answered by another user")
    except OSError:
        channel.close()
        raise
    return channel


def question(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is sent to ask something."""
    return {**facts, "ask": name, "version": VERSION}


def answer(channel: "socket.socket", asked: Mapping[str, Any]) -> Any:
    """Ask over an open connection and return the answer; an error that is answered is raised."""
    send(channel, asked)
    return receive(channel, asked)


def send(channel: "socket.socket", asked: Mapping[str, Any]) -> None:
    """Send a question over an open connection."""
    with _loss_in_words(asked):
        send_message(channel, asked)


def receive(channel: "socket.socket", asked: Mapping[str, Any]) -> Any:
    """Return the answer to a question that was sent; an error that is answered is raised."""
    with _loss_in_words(asked):
        reply = receive_message(channel)
    if reply is None:
        raise PlaneLost(f"the plane went away while it was asked {asked['ask']!r}")
    return unpacked(reply)


@contextmanager
def _loss_in_words(asked: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise PlaneSilent(f"the plane did not answer {asked['ask']!r} in time") from None
    except (OSError, ValueError) as error:
        raise PlaneLost(f"the plane did not answer {asked['ask']!r}: {error}") from error


def unpacked(reply: Mapping[str, Any]) -> Any:
    """Return what an answer holds, or raise the error in it."""
    if "error" in reply:
        raise from_answer(dict(reply))
    return reply.get("ok")
