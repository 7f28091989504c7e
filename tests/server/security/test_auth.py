"""Who is calling, by what the database says now: a token that has ended lets nobody in."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchloom.server.security.auth import CallerIdentity, CookieRefused, Identities, identities_of
from torchloom.weaver.events import Journal
from torchloom.weaver.store import DatabasePlace, PlaneStore, StateLost, open_store
from torchloom.weaver.store.reader import open_reading
from torchloom.weaver.store.rows import TokenRow
from torchloom.weaver.users import UserRegistry, hash_of

from ...harness.fresh_databases import fresh
from ...harness.home import TIMEOUT, allowed


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PlaneStore]:
    opened = open_store(fresh(tmp_path))
    yield opened
    opened.close()


@pytest.fixture
def people(store: PlaneStore) -> UserRegistry:
    made = UserRegistry(store.state, Journal(store.state))
    made.put("admin", "admin", None, "test")
    made.put("alice", "operator", None, "test")
    return made


@pytest.fixture
def identities(tmp_path: Path, people: UserRegistry) -> Iterator[Identities]:
    reading = open_reading(DatabasePlace(tmp_path))
    yield identities_of(reading.state)
    reading.close()


def test_a_token_is_its_users_until_it_is_revoked(
    people: UserRegistry, identities: Identities
) -> None:
    token, secret = people.add_token("alice", "", "admin")

    before = asyncio.run(identities.who(secret))
    people.revoke(token.id, "admin")
    identities.forget()
    after = asyncio.run(identities.who(secret))

    assert before == CallerIdentity("alice", "operator", token.id, "token")
    assert after is None


def test_a_session_is_its_users_by_both_secrets_of_one_login(
    people: UserRegistry, identities: Identities
) -> None:
    def login(user: str) -> tuple[TokenRow, str, str]:
        _, code = people.add_link(user, "admin")
        return people.use_link(code, "cookie", "browser")

    def whose(*shown: str) -> CallerIdentity | None:
        return asyncio.run(identities.session(shown[:-1], shown[-1]))

    session, cookie, proof = login("alice")
    _, foreign, other = login("admin")
    _, token = people.add_token("alice", "", "admin")

    found = whose(cookie, proof)
    assert found == CallerIdentity("alice", "operator", session.id, "cookie", session.proof)
    assert whose(foreign, cookie, proof) == found
    for shown in ((cookie, other), (foreign, proof), (cookie, ""), ("", proof), (cookie, cookie)):
        assert whose(*shown) is None
    for shown in ((proof, cookie), (token, token), (token, proof), (session.hash, session.proof)):
        assert whose(*shown) is None
    assert asyncio.run(identities.who(proof)) is None
    with pytest.raises(CookieRefused):
        asyncio.run(identities.who(cookie))

    people.revoke(session.id, "admin")
    identities.forget()
    assert whose(cookie, proof) is None


def test_a_session_without_a_second_secret_lets_nobody_in(
    people: UserRegistry, identities: Identities, store: PlaneStore
) -> None:
    secret = "loom_of_long_ago"
    store.state.put(TokenRow("t-old", "alice", "browser", hash_of(secret), "cookie"))

    for proof in ("", "x", hash_of("")):
        assert asyncio.run(identities.session([secret], proof)) is None
    assert asyncio.run(identities.who(secret)) is None


def test_a_revoked_token_ends_within_two_seconds_also_where_nobody_was_told(
    people: UserRegistry, store: PlaneStore
) -> None:
    clock = [0.0]
    look = identities_of(store.state)._look
    identities = Identities(look, lambda: clock[0])
    token, secret = people.add_token("alice", "", "admin")
    assert asyncio.run(identities.who(secret)) is not None

    people.revoke(token.id, "admin")
    clock[0] = 2.0

    assert asyncio.run(identities.who(secret)) is None


def test_looks_of_one_moment_are_one_look_at_the_database() -> None:
    looks: list[str] = []

    def look(column: str, value: str) -> CallerIdentity | None:
        looks.append(column)
        return CallerIdentity("a", "viewer", "t", "token")

    identities = Identities(look, lambda: 1.0)

    async def many() -> None:
        for _ in range(100):
            assert await identities.who("secret")

    asyncio.run(many())
    assert looks == ["hash"]


def test_what_nobody_knows_is_not_remembered() -> None:
    known: list[CallerIdentity] = []
    identities = Identities(lambda *_: known[0] if known else None, lambda: 1.0)
    assert asyncio.run(identities.who("secret")) is None

    known.append(CallerIdentity("a", "viewer", "t", "token"))

    assert asyncio.run(identities.who("secret")) == known[0]


@pytest.mark.parametrize("secret", ["", "loom_", "x" * 10_000, "é", "\ud800", "a\x00b"])
def test_what_is_no_token_lets_nobody_in(identities: Identities, secret: str) -> None:
    assert asyncio.run(identities.who(secret)) is None


def test_neither_a_hash_nor_an_id_is_a_token(people: UserRegistry, identities: Identities) -> None:
    token, _ = people.add_token("alice", "", "admin")

    assert asyncio.run(identities.who(token.hash)) is None
    assert asyncio.run(identities.who(token.id)) is None


def test_a_token_that_is_over_or_whose_user_is_disabled_lets_nobody_in(
    people: UserRegistry, store: PlaneStore
) -> None:
    token, secret = people.add_token("alice", "", "admin", seconds=60)
    later = identities_of(store.state, lambda: token.created_at + 60)
    now = identities_of(store.state)
    assert asyncio.run(now.who(secret)) is not None

    assert asyncio.run(later.who(secret)) is None

    people.put("alice", None, True, "admin")
    now.forget()
    assert asyncio.run(now.who(secret)) is None


Change = Callable[[UserRegistry, str], object]
CHANGES: dict[str, Change] = {
    "revoked": lambda people, token: people.revoke(token, "admin"),
    "disabled": lambda people, token: people.put("alice", None, True, "admin"),
    "demoted": lambda people, token: people.put("alice", "viewer", None, "admin"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_watch_ends_within_five_seconds_of_the_change(
    people: UserRegistry, identities: Identities, change: str
) -> None:
    async def run() -> float:
        token, secret = people.add_token("alice", "", "admin")
        identity = await identities.who(secret)
        assert identity is not None
        watch = asyncio.create_task(identities.watch(identity))
        done, _ = await asyncio.wait([watch], timeout=1.2)
        assert not done
        changed = time.monotonic()
        CHANGES[change](people, token.id)
        await asyncio.wait_for(watch, TIMEOUT)
        return time.monotonic() - changed

    assert asyncio.run(run()) < allowed(5)


def test_a_watch_goes_on_when_a_user_may_more_than_before(
    people: UserRegistry, identities: Identities
) -> None:
    async def run() -> bool:
        _, secret = people.add_token("alice", "", "admin")
        identity = await identities.who(secret)
        assert identity is not None
        people.put("alice", "admin", None, "admin")
        done, waiting = await asyncio.wait(
            [asyncio.create_task(identities.watch(identity))], timeout=1.5
        )
        for task in waiting:
            task.cancel()
        return bool(done)

    assert not asyncio.run(run())


def test_a_watch_ends_when_nobody_can_say_whether_the_token_counts() -> None:
    def lost(column: str, value: str) -> CallerIdentity | None:
        raise StateLost("gone")

    identity = CallerIdentity("a", "viewer", "t", "token")

    asyncio.run(asyncio.wait_for(Identities(lost).watch(identity), TIMEOUT))
