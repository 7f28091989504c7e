"""`python -m torchloom.server`: bind a port, serve, publish the address, shut down on a signal."""

import argparse
import asyncio
import gc
import json
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from torchloom import settings
from torchloom.client import plane
from torchloom.errors import Failure, LoomError, UserError
from torchloom.server import submission
from torchloom.server.access_log import JsonLogFormatter
from torchloom.server.app import Front, build, guarded
from torchloom.server.bundle import Bundle, bundle_of, manual_of
from torchloom.server.plane_access import PlaneAccess
from torchloom.server.security.guard import VARIABLE as ORIGINS
from torchloom.server.security.guard import reach
from torchloom.server.security.limits import (
    ConnectionLimits,
    Connections,
    PacedRequests,
    Visit,
    fit_open_files,
)
from torchloom.server.security.protocol import ConnectionListener, LimitedProtocol
from torchloom.server.stream import frames
from torchloom.server.stream.frames import FramedProtocol
from torchloom.server.weaver_link import WeaverLink
from torchloom.weaver.store import DatabasePlace, place_of
from torchloom.weaver.store.reader import open_reading

PORT = 8787  # preferred; another where it is taken
_GRACE = 5  # seconds for requests that are under way when the server is to shut down
_BACKLOG = 2048  # calls that wait
_SWEEP = 5  # ticks of a tenth of a second between two sweeps of connections
_EVERYWHERE = ("", "0.0.0.0", "::", "*")


class NoPort(Failure):
    """The requested port cannot be bound."""

    code = "no_port"


class BadListenAddress(UserError):
    """Nothing is to be served at this address."""

    code = "bad_address"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where a server listens, and where it finds the weaver and the database."""

    host: str
    port: int | None
    home: Path
    runtime: Path
    door: Path
    place: DatabasePlace
    origins: str
    certificate: Path | None
    key: Path | None
    authority: Path | None
    bundle: Bundle
    manual: Bundle

    @property
    def scheme(self) -> str:
        return "https" if self.certificate else "http"


class HttpServer(uvicorn.Server):
    """Publishes its address once it accepts connections, and withdraws it at shutdown."""

    def __init__(
        self,
        config: uvicorn.Config,
        table: Connections,
        card: Path,
        url: str,
        context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(config)
        self.table, self.card, self.url = table, card, url
        self._context = context
        self._accepting: list[asyncio.Task[None]] = []

    def leave(self, signum: int, frame: FrameType | None) -> None:
        """Accept no more connections, finish open requests, and end."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])  # uvicorn would accept all that have called in one turn
        if self.started:
            listener = ConnectionListener(self.table, self._context, self._protocol)
            work = [listener.run(each) for each in sockets or ()]
            self._accepting = [asyncio.create_task(each) for each in work]
        if self.started:
            gc.collect()
            gc.freeze()  # else a collection looks at all that was imported: 60 ms at once
            _write(self.card, {"url": self.url, "pid": os.getpid()})

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if _read(self.card).get("pid") == os.getpid():
            self.card.unlink(missing_ok=True)
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        self.table.drain()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        if counter % _SWEEP == 0:
            await self.table.sweep()
        return await super().on_tick(counter)

    def _protocol(self, visit: Visit) -> LimitedProtocol:
        state = self.lifespan.state
        return LimitedProtocol(self.table, self.config, self.server_state, state, visit=visit)


def main(words: Sequence[str] | None = None) -> int:
    """Run a server; return the exit code."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger(frames.__name__).setLevel(logging.WARNING)  # `access` has a line for each
    try:
        return _serve(options_of(words, settings.environment()))
    except LoomError as error:
        sys.stderr.write(f"server: {error}\n")
        return error.exit_code


def options_of(words: Sequence[str] | None, env: Mapping[str, str]) -> ServerOptions:
    """Return the options of the command line and the environment."""
    parser = argparse.ArgumentParser(prog="python -m torchloom.server", description=__doc__)
    parser.add_argument("--host", default=settings.LOOPBACK, help="the address to serve at")
    parser.add_argument(
        "--port", type=int, help=f"0 for any; without it the last one, {PORT}, or any that is free"
    )
    parser.add_argument("--home", type=Path, help="the state folder; LOOM_HOME")
    parser.add_argument("--runtime", type=Path, help="the folder of the plane's sockets")
    parser.add_argument("--door", type=Path, help="the weaver's socket, where it is another's")
    parser.add_argument("--tls-cert", type=Path, help="the certificates to show, the own one first")
    parser.add_argument("--tls-key", type=Path, help="the key of the certificate")
    parser.add_argument("--tls-ca", type=Path, help="the authority that clients pin")
    given = parser.parse_args(words)
    if given.host in _EVERYWHERE:
        raise BadListenAddress(
            "the server does not listen on all addresses; name the one that others use"
        )
    if bool(given.tls_cert) != bool(given.tls_key):
        raise BadListenAddress("--tls-cert and --tls-key go together; give both or neither")
    home = (given.home or settings.loom_home()).absolute()
    runtime = given.runtime or plane.made_folder()
    return ServerOptions(
        host=given.host,
        port=given.port,
        home=home,
        runtime=runtime,
        door=given.door or runtime / plane.door().name,
        place=place_of(home, env),
        origins=env.get(ORIGINS, ""),
        certificate=given.tls_cert,
        key=given.tls_key,
        authority=given.tls_ca,
        bundle=bundle_of(env),
        manual=manual_of(env),
    )


def _serve(options: ServerOptions) -> int:
    submission.prepare()
    card = options.runtime / plane.card().name
    listener = listen(options, _read(card))
    port: int = listener.getsockname()[1]
    front = Front(
        reach(port, options.host, options.origins, bool(options.certificate)),
        bool(options.certificate),
        options.authority,
        options.bundle,
        options.manual,
    )
    app = build(
        PlaneAccess(WeaverLink(options.door), open_reading(options.place), options.home), front
    )
    table = Connections(fit_open_files(ConnectionLimits()))
    url = f"{options.scheme}://{_shown(options.host)}:{port}"
    config = configuration(guarded(app, front), table)
    context = tls_context(options.certificate, options.key)
    server = HttpServer(config, table, card, url, context)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, server.leave)  # what comes before, and is raised again behind, too
    server.run([listener])
    return 0


def configuration(app: ASGIApp, table: Connections) -> uvicorn.Config:
    """Return how uvicorn serves an app: with our protocols and their limits."""
    return uvicorn.Config(
        PacedRequests(app, table.limits.begun),
        loop="uvloop",
        http=LimitedProtocol,
        ws=FramedProtocol,
        ws_max_size=4096,
        ws_per_message_deflate=False,
        lifespan="on",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
    )


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the TLS context: version 1.2 at least, and no renegotiation."""
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.load_cert_chain(certificate, key)
    return context


def listen(options: ServerOptions, last: Mapping[str, object]) -> socket.socket:
    """Return a listening socket: at the named port, or at the first free one."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    reason = ""
    for port in _ports(options, last):
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((options.host.strip("[]"), port))
            listener.listen(_BACKLOG)  # only now the port is reserved
            listener.set_inheritable(True)
            return listener
        except OSError as error:
            listener.close()
            reason = error.strerror or str(error)
    asked = "any port" if options.port is None else f"port {options.port}"
    raise NoPort(f"cannot listen on {asked} of {options.host}: {reason}; name another with --port")


def _ports(options: ServerOptions, last: Mapping[str, object]) -> Iterator[int]:
    """Yield the ports to try, the last one first: clients find a new server at the same address."""
    if options.port is not None:
        yield options.port
        return
    port = str(last.get("url", "")).rpartition(":")[2]
    if port.isdecimal() and 0 < int(port) < 1 << 16:
        yield int(port)
    yield PORT
    yield 0


def _shown(host: str) -> str:
    plain = host.strip("[]")
    return f"[{plain}]" if ":" in plain else plain


def _read(card: Path) -> dict[str, object]:
    try:
        found = json.loads(card.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(card: Path, facts: Mapping[str, object]) -> None:
    """Replace the card in one step; only this user reads it."""
    partial = card.with_name(f".{card.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        json.dump(facts, file)
    partial.replace(card)
