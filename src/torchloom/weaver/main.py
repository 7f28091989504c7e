"""`python -m torchloom.weaver`: open the database, take the next epoch, connect, run."""

import argparse
import asyncio
import contextlib
import logging
import math
import signal
import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchloom import settings
from torchloom.bus import subjects
from torchloom.bus.nats import credentials
from torchloom.bus.nats.client import NatsBus
from torchloom.bus.nats.credentials import (
    ADDRESS_VARIABLE,
    AUTHORITY_VARIABLE,
    CREDENTIALS_VARIABLE,
    DEFAULT,
    chosen,
)
from torchloom.client import plane
from torchloom.errors import LoomError, UserError, shorten
from torchloom.weaver.account_runs import have_agent
from torchloom.weaver.api.router import BusDoor, Door, Router
from torchloom.weaver.checkpoints.triggers import MARGIN
from torchloom.weaver.jobs.adoption import RunNotices
from torchloom.weaver.service import Weaver
from torchloom.weaver.store import DatabasePlace, daily_backup, open_store, place_of
from torchloom.weaver.store.place import VARIABLE as DATABASE_VARIABLE
from torchloom.weaver.users import introduce

_LOOK_AGAIN = 2.0  # seconds between two checks for launch processes that have died
_OURS = (ADDRESS_VARIABLE, CREDENTIALS_VARIABLE, AUTHORITY_VARIABLE, DATABASE_VARIABLE)
_MARGIN = "LOOM_CHECKPOINT_MARGIN"
_log = logging.getLogger("torchloom.weaver")


@dataclass(frozen=True, slots=True)
class WeaverOptions:
    """Where a weaver finds its database, its bus and its door."""

    place: DatabasePlace
    door: Path
    nats: str
    credentials: Path | None
    authority: Path | None
    home: Path
    margin: float = MARGIN  # seconds before the end of an allocation in which a job is saved


def main(words: Sequence[str] | None = None) -> int:
    """Run a weaver; return the exit code."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        options = _options(words, settings.environment())
        _drop_own_variables()
        return asyncio.run(_run(options))
    except LoomError as error:
        sys.stderr.write(f"weaver: {error}\n")
        return error.exit_code


def _options(words: Sequence[str] | None, env: Mapping[str, str]) -> WeaverOptions:
    parser = argparse.ArgumentParser(prog="python -m torchloom.weaver", description=__doc__)
    parser.add_argument("--home", type=Path, help="the state folder; LOOM_HOME")
    parser.add_argument("--runtime", type=Path, help="the folder of the plane's sockets")
    parser.add_argument("--nats", default=chosen(env) or DEFAULT, help=ADDRESS_VARIABLE)
    parser.add_argument(
        "--creds", type=Path, help=f"the file of credentials; {CREDENTIALS_VARIABLE}"
    )
    parser.add_argument(
        "--ca", type=Path, help=f"the authority of the server's certificate; {AUTHORITY_VARIABLE}"
    )
    given = parser.parse_args(words)
    home = given.home or settings.loom_home()
    folder = given.runtime or plane.made_folder()
    return WeaverOptions(
        place_of(home, env),
        folder / plane.door().name,
        given.nats,
        given.creds or _path(env, CREDENTIALS_VARIABLE),
        given.ca or _path(env, AUTHORITY_VARIABLE),
        home,
        _margin(env.get(_MARGIN, "")),
    )


def _margin(text: str) -> float:
    """Return how long before the end of an allocation a job is saved."""
    if not text:
        return MARGIN
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise UserError(f"{_MARGIN}={shorten(text)}: write seconds, such as 120")


def _drop_own_variables() -> None:
    """Drop the addresses and credentials that jobs must not inherit."""
    env = settings.environment()
    settings.replace_environment({k: v for k, v in env.items() if k not in _OURS})


def _path(env: Mapping[str, str], name: str) -> Path | None:
    return Path(env[name]) if env.get(name) else None


async def _start_account_agents(weaver: Weaver) -> None:
    """Have the plane start the agents of accounts that have running jobs."""
    for account in {job.account for job in weaver.jobs.active() if job.account}:
        try:
            await asyncio.to_thread(have_agent, account)
        except LoomError as error:
            _log.warning("jobs of %s have no agent: %s", account, error)


async def _run(options: WeaverOptions) -> int:
    if options.place.note:
        _log.warning(options.place.note)
    store = open_store(options.place)
    bus = NatsBus(
        options.nats,
        credentials=credentials.read(options.credentials) if options.credentials else None,
        inbox=subjects.inbox("weaver"),
        name="weaver",
        tls=ssl.create_default_context(cafile=options.authority) if options.authority else None,
    )
    weaver = Weaver(store, bus, checkpoint_margin=options.margin)
    introduce(weaver.users, options.home)
    adoption = weaver.adoption
    weaver.every(_LOOK_AGAIN, adoption.look_again)
    copies = daily_backup.DailyCopy(options.place, options.home)
    weaver.every(daily_backup.PERIOD, copies.look_soon)
    notices = RunNotices(options.door.parent, weaver.failing(adoption.look_at))
    router = Router(weaver)
    door, bus_door = Door(router, weaver.journal, options.door), BusDoor(router, bus)
    bus.start()
    await weaver.start()
    notices.open()
    adoption.look_at_all()
    await _start_account_agents(weaver)
    weaver.coordinator.start()
    await bus_door.open()
    await door.open()
    _log.info("epoch %d, database %s, bus %s", weaver.epoch, options.place.state, options.nats)
    running = asyncio.current_task()
    assert running is not None
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(signum, running.cancel)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await weaver.run()
    finally:
        notices.close()
        await door.close()
        await bus_door.close()
        await copies.close()
        await weaver.stop()
        await bus.close()
        store.close()
    return 0
