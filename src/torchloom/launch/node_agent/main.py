"""`python -m torchloom.launch.node_agent`: be the agent of this node until a signal says to leave.

With `--line` it is that of an account's jobs, and the plane that started it vouches for it. With
`--through` it is that of one job on a node which is not the plane's: it reaches the plane
through the job's launch process, and brings away what it holds before it leaves.
"""

import argparse
import asyncio
import contextlib
import fcntl
import logging
import os
import re
import shutil
import signal
import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torchloom import settings
from torchloom.bus import subjects
from torchloom.bus.nats import credentials
from torchloom.bus.nats.client import FoundBus, NatsBus
from torchloom.bus.nats.credentials import (
    ADDRESS_VARIABLE,
    AGENT_ID_VARIABLE,
    AUTHORITY_VARIABLE,
    CREDENTIALS_VARIABLE,
    chosen,
)
from torchloom.bus.spool.spool import LIMIT
from torchloom.errors import LoomError, UserError
from torchloom.launch import wire
from torchloom.launch.host import identity
from torchloom.launch.host.sockets import LOADED_AFTER, UPLINK, load_needed
from torchloom.launch.node_agent import gpus, resources
from torchloom.launch.node_agent.service import NodeAgent
from torchloom.launch.node_agent.uplink import AgentIdentity, TunnelClient, Vouched
from torchloom.launch.variables import NODE_VARIABLE, TOKEN_VARIABLE
from torchloom.unix import make_private

_HOST = "host"  # in the spool of a job's agent: where it is, or was
_SHUTDOWN_LIMIT = 2.0  # seconds to bring away what is on the disk


def sign(spool: Path, host: str) -> None:
    """Say in a spool whose it is, so that the next agent of the host may take it over."""
    spool.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # then it stays where it is
        (spool / _HOST).write_text(host)


def adopt(spool: Path, host: str) -> None:
    """Move what lies in spools of this host without an agent into one's own, before it is opened.

    The agent of a job takes over those of its own job alone: the weaver accepts no others of it.
    """
    spool.mkdir(mode=0o700, parents=True, exist_ok=True)
    for other in sorted(spool.parent.iterdir()):
        if other != spool and _is_of(other, host) and _may_send(spool.name, other.name):
            with contextlib.suppress(OSError):  # another process has it, or was faster
                _move(other, spool)


def _is_of(spool: Path, host: str) -> bool:
    with contextlib.suppress(OSError):
        return (spool / _HOST).read_text() == host
    return False


def _may_send(agent: str, other: str) -> bool:
    return subjects.job_mark(agent) in ("", subjects.job_mark(other))


def _move(other: Path, spool: Path) -> None:
    lock = os.open(other / "lock", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for spooled in other.iterdir():
            if spooled.is_dir() and not spooled.name.startswith("."):
                spooled.rename(spool / spooled.name)
        shutil.rmtree(other)
    finally:
        os.close(lock)


def main(words: Sequence[str] | None = None) -> int:
    """Run the agent; return the code to exit with."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    try:
        asyncio.run(_serve(_options(words, settings.environment())))
    except LoomError as error:
        sys.stderr.write(f"agent: {error}\n")
        return error.exit_code
    return 0


def _options(words: Sequence[str] | None, env: Mapping[str, str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m torchloom.launch.node_agent", description=__doc__
    )
    parser.add_argument("--runtime", type=Path, default=settings.plane_dir())
    parser.add_argument("--home", type=Path, default=settings.loom_home())
    parser.add_argument("--nats", default=chosen(env), help=f"address; {ADDRESS_VARIABLE}")
    parser.add_argument(
        "--credentials", default=env.get(CREDENTIALS_VARIABLE, ""), help=CREDENTIALS_VARIABLE
    )
    parser.add_argument(
        "--authority", default=env.get(AUTHORITY_VARIABLE, ""), help=AUTHORITY_VARIABLE
    )
    parser.add_argument("--agent", default=env.get(AGENT_ID_VARIABLE, ""), help=AGENT_ID_VARIABLE)
    parser.add_argument("--node", default=env.get(NODE_VARIABLE, ""), help=NODE_VARIABLE)
    parser.add_argument(
        "--through", type=wire.LaunchAddress.parse, help="a launch process: HOST:PORT"
    )
    parser.add_argument("--line", type=int, help="the descriptor of a line to the plane")
    parser.add_argument("--spool-limit", type=int, default=0, help="bytes")
    options = parser.parse_args(words)
    if not options.nats and options.through is None and options.line is None:
        raise UserError(f"no NATS server is named; pass --nats or set {ADDRESS_VARIABLE}")
    options.node = options.node or os.uname().nodename
    options.agent = options.agent or re.sub(r"[^A-Za-z0-9_-]", "-", options.node)[:64] or "node"
    return options


async def _serve(options: argparse.Namespace) -> None:
    """Relay until SIGTERM or SIGINT."""
    if options.line is not None:
        for folder in (options.runtime.parent, options.runtime):
            make_private(folder)
    bus = _bus(options)
    spool = _spool(options)
    address = options.runtime / UPLINK
    found, limit = gpus.find(), options.spool_limit or LIMIT
    relay = NodeAgent(_identity(options, found), bus, address, spool, limit, gpus=found)
    bus.start()
    loop, leaving = asyncio.get_running_loop(), asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, leaving.set)
    running = loop.create_task(relay.run(), name="relay")
    loop.call_later(LOADED_AFTER, load_needed)
    waiting = loop.create_task(leaving.wait(), name="leaving")
    try:
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        if leaving.is_set() and options.through is not None and await relay.flush(_SHUTDOWN_LIMIT):
            shutil.rmtree(spool, ignore_errors=True)
        running.cancel()
        await running
    except asyncio.CancelledError:
        logging.getLogger(__name__).info("stopping as requested; dropped: %s", dict(relay.dropped))
    finally:
        await bus.close()


def _spool(options: argparse.Namespace) -> Path:
    """Return the folder for what ranks say, with what others who are gone have left in theirs."""
    spool: Path = options.home / "plane" / "spool" / options.agent
    adopt(spool, identity.host_name())
    if options.through is not None:
        sign(spool, identity.host_name())
    return spool


def _bus(options: argparse.Namespace) -> NatsBus:
    inbox, name = subjects.inbox(options.agent), f"agent {options.agent}"
    if options.through is not None:
        token = settings.environment().get(TOKEN_VARIABLE, "")
        return FoundBus(TunnelClient(options.through, token, options.node, name).find, inbox)
    if options.line is not None:
        return FoundBus(Vouched(options.line, name).find, inbox)
    return NatsBus(
        options.nats,
        credentials=credentials.read(Path(options.credentials)) if options.credentials else None,
        inbox=inbox,
        name=name,
        tls=ssl.create_default_context(cafile=options.authority) if options.authority else None,
    )


def _identity(options: argparse.Namespace, known: gpus.Gpus | None) -> AgentIdentity:
    choice = settings.environment().get(resources.CHOICE, "")
    found = resources.offered(options.node, choice, known)
    me = AgentIdentity(options.agent, identity.host_name(), identity.boot_id(), os.getpid(), found)
    if options.through is not None or options.line is not None:
        return me  # what the node has beside is for others
    return replace(me, cpus=resources.cpus(found, choice), memory_mb=resources.memory_mb())
