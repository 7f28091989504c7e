"""People at the door: who asks is named, secrets are shown once, and the bus lets nobody in."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from torchloom.bus import subjects
from torchloom.bus.api import NoReply
from torchloom.bus.memory import Exchange, MemoryBus
from torchloom.weaver.api.router import Router
from torchloom.weaver.service import Weaver

from ...harness.fake_agents import weaver_at


def asked(folder: Path, *questions: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what a weaver answers to one question after the other."""

    async def run() -> list[dict[str, Any]]:
        async with weaver_at(folder, Exchange()) as weaver:
            answering = Router(weaver)
            return [
                await answering.answer({"version": 1, "ask": name, **facts})
                for name, facts in questions
            ]

    return asyncio.run(run())


def test_a_user_with_a_token_a_link_and_a_cookie(tmp_path: Path) -> None:
    async def run(weaver: Weaver) -> None:
        answering = Router(weaver)

        async def ask(name: str, **facts: Any) -> Any:
            return (await answering.answer({"version": 1, "ask": name, **facts}))["ok"]

        user = await ask("user_put", user="alice", role="operator", author="admin")
        made = await ask("token_add", user="alice", label="ci", author="admin", seconds=60)
        link = await ask("link_add", user="alice", author="admin")
        used = await ask("link_use", code=link["code"], label="browser")
        ended = await ask("token_revoke", id=made["id"], author="admin")
        listed = await ask("tokens", user="alice")

        assert await ask("users") == [user]
        assert {**user, "created_at": ""} == {
            "name": "alice",
            "role": "operator",
            "disabled": False,
            "run_as": None,
            "created_at": "",
        }
        assert made["token"].startswith("loom_")
        assert used["token"] != made["token"]
        assert (used["user"], used["role"], used["kind"]) == ("alice", "operator", "cookie")
        shown = {
            key: value for key, value in used.items() if key not in ("token", "role", "session")
        }
        assert listed == [ended, shown]
        assert ended["revoked_at"] is not None
        assert used["session"] not in ("", used["token"])
        hidden = ("token", "hash", "session", "proof")
        assert not any(name in each for each in listed for name in hidden)

    async def scenario() -> None:
        async with weaver_at(tmp_path, Exchange()) as weaver:
            await run(weaver)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "facts", "code"),
    [
        ("user_put", {"user": "alice", "role": "viewer"}, "bad_question"),
        ("user_put", {"user": "A", "role": "viewer", "author": "a"}, "bad_name"),
        ("user_put", {"user": "a", "role": "king", "author": "a"}, "bad_role"),
        ("user_put", {"user": "a", "role": "viewer", "disabled": 1, "author": "a"}, "bad_question"),
        ("token_add", {"user": "alice"}, "bad_question"),
        ("token_add", {"user": "alice", "author": "a"}, "not_found"),
        ("token_add", {"user": "a", "author": "a", "seconds": -1}, "bad_question"),
        ("token_revoke", {"id": "t", "author": "a"}, "not_found"),
        ("link_add", {"user": "Bad Name", "author": "a"}, "bad_name"),
        ("link_use", {"code": "c"}, "link_unknown"),
        ("link_use", {"code": "c", "kind": "key"}, "bad_question"),
        ("link_use", {}, "bad_question"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(
    tmp_path: Path, name: str, facts: dict[str, Any], code: str
) -> None:
    [answer] = asked(tmp_path, (name, facts))

    assert (answer["code"], answer["exit_code"]) == (code, 2)


def test_over_the_bus_nobody_is_let_in(tmp_path: Path) -> None:
    async def run() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            bus = MemoryBus(exchange)
            assert await bus.request(subjects.door("status"), b"{}", 5.0)
            for name in ("users", "user_put", "token_add", "link_add", "link_use"):
                with pytest.raises(NoReply):
                    await bus.request(subjects.door(name), b'{"author": "x", "user": "x"}', 0.05)
            await bus.close()

    asyncio.run(run())


def test_a_question_that_fails_is_logged_without_what_was_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            if name == "code":
                raise RuntimeError("a bug")
            return super().get(name, default)

    async def run() -> dict[str, Any]:
        async with weaver_at(tmp_path, Exchange()) as weaver:
            said = Broken(version=1, ask="link_use", code="a-secret")
            return await Router(weaver).answer(said)

    with caplog.at_level(logging.ERROR):
        answer = asyncio.run(run())

    assert answer["code"] == "internal"
    assert "link_use could not be answered" in caplog.text
    assert "a-secret" not in caplog.text + str(answer)
