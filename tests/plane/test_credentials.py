"""Keys are made once and closed to others; a signed user can do exactly what it may."""

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest

from torchloom.bus import subjects
from torchloom.bus.api import BusLost
from torchloom.bus.nats.client import NatsBus, new_key
from torchloom.bus.nats.credentials import read
from torchloom.plane.credentials import (
    Credentials,
    KeysUnusable,
    credentials,
    strangers_credentials,
)

from .conftest import Server

CONNECTING = {"connect_timeout": 5, "allow_reconnect": False}


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}


def test_keys_are_made_at_the_first_start_and_kept(tmp_path: Path) -> None:
    first = credentials(tmp_path)
    texts = {path.name: path.read_text() for path in first.folder.iterdir()}

    second = credentials(tmp_path)

    assert second == first == Credentials(tmp_path / "plane" / "keys")
    assert {path.name: path.read_text() for path in second.folder.iterdir()} == texts
    assert set(texts) == {
        *("operator.nk", "account.nk", "account.conf"),
        *("weaver.creds", "door.creds", "probe.creds"),
    }


def test_nobody_else_can_read_a_key_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        keys = credentials(tmp_path)
        keys.agent("n1")
    finally:
        os.umask(before)

    assert modes(keys.folder) == {0o600}
    folders = (keys.folder.parent, keys.folder, keys.folder / "agents")
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}


def test_a_folder_of_keys_that_was_opened_is_closed_again(tmp_path: Path) -> None:
    keys = credentials(tmp_path)
    keys.folder.chmod(0o755)

    credentials(tmp_path)

    assert stat.S_IMODE(keys.folder.stat().st_mode) == 0o700


def test_keys_that_are_not_all_there_are_refused_with_the_remedy(tmp_path: Path) -> None:
    keys = credentials(tmp_path)
    (keys.folder / "account.nk").unlink()

    with pytest.raises(KeysUnusable) as refused:
        keys.sign_agent("n1")

    assert str(refused.value) == (
        f"cannot use the plane's keys in {keys.folder}: account.nk: No such file or directory; "
        "without that folder `loom up` makes new ones"
    )


@pytest.mark.process
def test_of_first_starts_at_once_all_get_the_same_keys(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from torchloom.plane.credentials import credentials;"
        "print(credentials(Path(sys.argv[1])).trusted)"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    started = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(4)]

    seen = {process.communicate()[0] for process in started}

    assert len(seen) == 1
    assert [path.name for path in (tmp_path / "plane").iterdir()] == ["keys"]


@pytest.mark.parametrize("name", ["weaver", "door", "probe", "a.b", "*", ">", "", "a b", "x" * 65])
def test_an_agent_cannot_take_a_name_that_gives_it_more(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be|can be called"):
        credentials(tmp_path).sign_agent(name)


class Client:
    """A client of NATS' own library, and what its server complained of."""

    def __init__(self) -> None:
        self.complaints: list[str] = []

    async def connect(self, url: str, file: Path, inbox: str) -> Any:
        async def complain(error: Exception) -> None:
            self.complaints.append(str(error).lower())

        return await nats.connect(
            url,
            user_credentials=str(file),
            inbox_prefix=subjects.inbox(inbox),
            error_cb=complain,
            **CONNECTING,
        )


@pytest.mark.process
def test_an_agent_speaks_and_hears_on_its_own_subjects_alone(
    tmp_path: Path, server: Callable[..., Server]
) -> None:
    keys = credentials(tmp_path)
    url = server("-c", str(keys.folder / "account.conf")).url

    async def run() -> tuple[bytes, list[str], list[str]]:
        agent, weaver, heard = Client(), Client(), list[str]()
        w = await weaver.connect(url, keys.user("weaver"), "weaver")
        a = await agent.connect(url, keys.agent("n1"), "n1")

        async def take(message: Any) -> None:
            heard.append(message.subject)
            if message.reply:
                await message.respond(b"welcome")

        await w.subscribe(subjects.EVERYTHING, cb=take)
        await w.flush()
        answer = await a.request(subjects.hello("n1"), b"hello", timeout=5)
        for subject in FORBIDDEN:
            await a.publish(subject, b"x")
        await a.publish(subjects.heartbeat("n1"), b"x")
        for subject in (subjects.down("n2"), subjects.EVERYTHING, "_INBOX.>", ">"):
            await a.subscribe(subject)
        await a.subscribe(subjects.down("n1"))
        await a.flush()
        async with asyncio.timeout(10):  # a flush of nats-py overtakes what was published
            beat = subjects.heartbeat("n1")
            while beat not in heard or len(agent.complaints) < len(FORBIDDEN) + 4:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await a.close()
        await w.close()
        inboxes = [one for one in heard if not one.startswith(subjects.inbox("n1"))]
        return answer.data, inboxes, agent.complaints

    data, heard, complaints = asyncio.run(run())

    assert data == b"welcome"
    assert heard == [subjects.hello("n1"), subjects.heartbeat("n1")]
    assert len(complaints) == len(FORBIDDEN) + 4
    assert all("permissions violation" in complaint for complaint in complaints)


@pytest.mark.process
def test_an_agent_that_made_its_own_key_speaks_for_itself_and_for_no_other_node(
    tmp_path: Path, server: Callable[..., Server]
) -> None:
    keys = credentials(tmp_path)
    url = server("-c", str(keys.folder / "account.conf")).url
    seed, key = new_key()
    signed, late = (keys.vouch_for_agent("n2", key, life) for life in (60, -1))

    async def run() -> tuple[list[str], str]:
        heard: list[str] = []
        weaver = await NatsBus.connect(url, credentials=read(keys.user("weaver")), inbox="w")
        agent = await NatsBus.connect(
            url, credentials=(signed, seed), inbox=subjects.inbox("n2"), name="n2"
        )

        async def take(subject: str, data: bytes, reply: str) -> None:
            heard.append(subject)

        await weaver.subscribe(subjects.EVERYTHING, take)
        await weaver.flush()
        for node in ("n1", "n3", "n2"):
            await agent.publish(subjects.heartbeat(node), b"x")
        await agent.flush()
        async with asyncio.timeout(10):
            while not heard:  # noqa: ASYNC110 - what was said before that is heard before it
                await asyncio.sleep(0.01)
        words = agent.last_error
        await agent.close()
        await weaver.close()
        return heard, words

    async def refused() -> None:
        await NatsBus.connect(url, credentials=(late, seed), inbox="x", patience=2.0)

    heard, complaint = asyncio.run(run())

    assert heard == [subjects.heartbeat("n2")]
    assert "permissions violation" in complaint.lower()
    with pytest.raises(BusLost):
        asyncio.run(refused())


@pytest.mark.parametrize("key", ["", "U" * 56, "not a key", "A" * 55, "É" * 56])
def test_nobody_is_vouched_for_without_a_key_of_a_user(key: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not the public key of a user"):
        credentials(tmp_path).vouch_for_agent("n2", key, 60)


FORBIDDEN = (
    subjects.hello("n2"),
    subjects.down("n2"),
    subjects.DEVICE_EVENTS,
    subjects.door("jobs"),
    f"{subjects.inbox('weaver')}.x",
)


@pytest.mark.process
def test_a_server_takes_whom_the_account_signed_and_nobody_else(
    tmp_path: Path, server: Callable[..., Server]
) -> None:
    keys = credentials(tmp_path)
    url = server("-c", str(keys.folder / "account.conf")).url
    stranger = tmp_path / "stranger.creds"
    stranger.write_text(strangers_credentials())
    late, gone = tmp_path / "late.creds", tmp_path / "gone.creds"
    late.write_text(keys.sign_agent("late", lifetime=3600))
    gone.write_text(keys.sign_agent("gone", lifetime=-10))

    async def enters(**how: Any) -> bool:
        async def quiet(_: Exception) -> None: ...

        try:
            client = await nats.connect(url, error_cb=quiet, **CONNECTING, **how)
        except (nats.errors.Error, OSError):
            return False
        await client.close()
        return True

    async def run() -> list[bool]:
        files = [late, keys.user("probe"), stranger, gone]
        entered = [await enters(user_credentials=str(file)) for file in files]
        return [*entered, await enters(), await enters(token="secret")]

    assert asyncio.run(run()) == [True, True, False, False, False, False]
