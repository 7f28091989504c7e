"""A state folder a test, and somebody who answers at the plane's sockets."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from torchloom.client import plane
from torchloom.launch.host import sockets
from torchloom.unix import receive_message, send_message

from ..harness.home import home

__all__ = ["home"]

Script = Callable[[dict[str, Any]], Sequence[dict[str, Any]]]


@pytest.fixture
def answering(home: Path) -> Iterator[Callable[[Path, Script], list[dict[str, Any]]]]:
    """Answer each question at a path with what a script says; return the questions as they come."""
    with contextlib.ExitStack() as stack:

        def start(path: Path, script: Script) -> list[dict[str, Any]]:
            plane.made_folder()
            listener = sockets.listen(path)
            listener.setblocking(True)
            asked: list[dict[str, Any]] = []
            thread = threading.Thread(target=_serve, args=(listener, script, asked))
            thread.start()
            stack.callback(thread.join)
            stack.callback(_stop, path)
            return asked

        yield start


def _serve(listener: socket.socket, script: Script, asked: list[dict[str, Any]]) -> None:
    with listener:
        while True:
            channel, _ = listener.accept()
            with channel:
                question = receive_message(channel)
                if question == {"stop": True}:
                    return
                if question is not None:
                    asked.append(question)
                    for message in script(question):
                        send_message(channel, message)


def _stop(path: Path) -> None:
    with sockets.connect(path) as channel:
        send_message(channel, {"stop": True})
