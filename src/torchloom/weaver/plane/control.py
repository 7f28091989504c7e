"""The plane process' own ear: whoever of this user calls it may ask, and hears an answer."""

import contextlib
import os
import selectors
import socket
from collections.abc import Callable
from pathlib import Path

from torchloom.errors import LoomError
from torchloom.launch.host import sockets
from torchloom.launch.wire import Connection, WireMessage
from torchloom.unix import same_user

Answer = Callable[[WireMessage], None]
Serve = Callable[[WireMessage, Answer], None]


class Control:
    """Takes calls at a path and passes each question on, with a way to answer it now or later."""

    def __init__(self, path: Path, selector: selectors.BaseSelector, serve: Serve) -> None:
        self._path = path
        self._selector = selector
        self._serve = serve
        self._callers: list[Connection] = []
        self._listener: socket.socket | None = sockets.listen(path)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def hang_up(self) -> None:
        """Take no new calls; those who have called still hear when we are gone."""
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Send what waits and hang up on everybody."""
        self.hang_up()
        for caller in self._callers:
            caller.finish()

    def _accept(self, _: int) -> None:
        if self._listener is None:
            return
        with contextlib.suppress(OSError):  # it hung up at once
            channel, _address = self._listener.accept()
            if same_user(channel):
                self._callers = [caller for caller in self._callers if caller.is_open]
                self._callers.append(self._answered(channel))
            else:
                channel.close()

    def _answered(self, channel: socket.socket) -> Connection:
        def hear(message: WireMessage, fds: list[int]) -> None:
            for fd in fds:
                os.close(fd)
            try:
                self._serve(message, caller.send)
            except LoomError as error:
                caller.send(complaint(error))

        caller = Connection(channel, self._selector, hear, lambda: None)
        return caller


def complaint(error: LoomError) -> dict[str, object]:
    """Return an error as it is answered."""
    return {"error": str(error), "code": error.code, "exit_code": error.exit_code}
