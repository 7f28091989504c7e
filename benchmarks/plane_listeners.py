"""Many clients of one stream, in a process: `python plane_listeners.py HOST PORT TOKEN PATH COUNT`.

They read frames off plain sockets and count whole messages; each line on stdin is answered with how
many each client has had so far, and with the milliseconds since each of the latest was logged.
"""

import json
import os
import selectors
import socket
import sys
import threading
import time
from datetime import datetime

_KEY = "dGhlIHNhbXBsZSBub25jZQ=="


class Client:
    """One WebSocket, read as bytes."""

    def __init__(self, host: str, port: int, token: str, path: str) -> None:
        self.count = 0
        self.ages: list[float] = []
        self._rest = b""
        self.socket = socket.create_connection((host, port))
        words = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
        words += "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        self.socket.sendall(f"{words}Sec-WebSocket-Key: {_KEY}\r\n\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.socket.recv(1)
        if b" 101 " not in answer:
            sys.exit(f"refused: {answer!r} {self.socket.recv(2000)!r}")

    def read(self, is_timed: bool) -> None:
        """Take what there is."""
        data = self.socket.recv(1 << 16)
        if not data:
            sys.exit("the server hung up")
        self._rest += data
        while (end := _frame(self._rest)) is not None:
            start, stop = end
            if self._rest[0] == 0x81:
                self.count += 1
                if is_timed:
                    self.ages.append(_age(self._rest[start:stop]))
            self._rest = self._rest[stop:]


def _frame(data: bytes) -> tuple[int, int] | None:
    """Return where the content of the first frame begins and ends, if it is whole."""
    if len(data) < 2:
        return None
    length, start = data[1], 2
    if length == 126:
        length, start = int.from_bytes(data[2:4]), 4
    elif length == 127:
        length, start = int.from_bytes(data[2:10]), 10
    return (start, start + length) if len(data) >= start + length else None


def _age(text: bytes) -> float:
    said = json.loads(text)
    return (time.time() - datetime.fromisoformat(said["time"]).timestamp()) * 1000


def main(host: str, port: str, token: str, path: str, count: str) -> None:
    """Read until stdin ends."""
    clients = [Client(host, int(port), token, path) for _ in range(int(count))]
    selector = selectors.DefaultSelector()
    for number, client in enumerate(clients):
        selector.register(client.socket, selectors.EVENT_READ, (client, number == 0))
    threading.Thread(target=_answer, args=(clients,), daemon=True).start()
    while True:
        for key, _ in selector.select():
            client, is_timed = key.data
            client.read(is_timed)


def _answer(clients: list[Client]) -> None:
    print("ready", flush=True)
    for _ in sys.stdin:
        ages, clients[0].ages = clients[0].ages, []
        print(json.dumps([[client.count for client in clients], ages]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
