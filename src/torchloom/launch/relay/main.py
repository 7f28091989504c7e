"""`python -m torchloom.launch.relay`: be the agent of this node until a signal says to leave."""

import argparse
import asyncio
import logging
import os
import re
import signal
import ssl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchloom import settings
from torchloom.bus import credentials, subjects
from torchloom.bus.address import (
    ADDRESS_VARIABLE,
    AGENT_ID_VARIABLE,
    AUTHORITY_VARIABLE,
    CREDENTIALS_VARIABLE,
    chosen,
)
from torchloom.bus.nats import NatsBus
from torchloom.bus.spool import LIMIT
from torchloom.errors import LoomError, UserError
from torchloom.launch import identity
from torchloom.launch.relay import resources
from torchloom.launch.relay.agent import Relay
from torchloom.launch.relay.uplink import Identity
from torchloom.launch.sockets import UPLINK
from torchloom.launch.variables import NODE_VARIABLE


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
    parser = argparse.ArgumentParser(prog="python -m torchloom.launch.relay", description=__doc__)
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
    parser.add_argument("--spool-limit", type=int, default=0, help="bytes")
    options = parser.parse_args(words)
    if not options.nats:
        raise UserError(f"no NATS server is named; pass --nats or set {ADDRESS_VARIABLE}")
    options.node = options.node or os.uname().nodename
    options.agent = options.agent or re.sub(r"[^A-Za-z0-9_-]", "-", options.node)[:64] or "node"
    return options


async def _serve(options: argparse.Namespace) -> None:
    """Relay until SIGTERM or SIGINT."""
    bus = _bus(options)
    spool = options.home / "plane" / "spool" / options.agent
    address = options.runtime / UPLINK
    relay = Relay(_identity(options), bus, address, spool, options.spool_limit or LIMIT)
    bus.start()
    loop = asyncio.get_running_loop()
    running = loop.create_task(relay.run(), name="relay")
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        logging.getLogger(__name__).info("told to leave; dropped: %s", dict(relay.dropped))
    finally:
        await bus.close()


def _bus(options: argparse.Namespace) -> NatsBus:
    return NatsBus(
        options.nats,
        credentials=credentials.read(Path(options.credentials)) if options.credentials else None,
        inbox=subjects.inbox(options.agent),
        name=f"agent {options.agent}",
        tls=ssl.create_default_context(cafile=options.authority) if options.authority else None,
    )


def _identity(options: argparse.Namespace) -> Identity:
    found = resources.devices((resources.CpuSlots(options.node), resources.NvidiaSmi()))
    host, boot = identity.host_name(), identity.boot_id()
    return Identity(options.agent, host, boot, os.getpid(), found)
