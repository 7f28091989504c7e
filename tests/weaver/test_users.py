"""Who may come in: names and roles are checked, secrets are kept nowhere, every change is noted."""

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchloom.errors import NotFound, UserError
from torchloom.weaver.events import Journal
from torchloom.weaver.store import PlaneStore, open_store
from torchloom.weaver.store.rows import LinkRow, TokenRow, UserRow
from torchloom.weaver.users import (
    COOKIE_LIFETIME,
    LINK_LIFETIME,
    BadLabel,
    BadName,
    BadRole,
    KeyUsed,
    LastAdmin,
    LinkRefused,
    UserDisabled,
    UserRegistry,
    is_good,
)

from ..harness.fake_agents import rows
from ..harness.fresh_databases import fresh

NOW = 1_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def people_of(store: PlaneStore, clock: Callable[[], float] = lambda: NOW) -> UserRegistry:
    return UserRegistry(store.state, Journal(store.state, clock), clock)


@pytest.fixture
def people(store: PlaneStore, clock: Clock) -> UserRegistry:
    made = people_of(store, clock)
    made.put("admin", "admin", False, "test")
    return made


def noted(store: PlaneStore) -> list[tuple[str, str, Any]]:
    return [(each.kind, each.author, each.facts) for each in store.state.happened()]


def test_a_user_is_made_and_changed_and_each_change_has_its_author(
    people: UserRegistry, store: PlaneStore
) -> None:
    made = people.put("alice", "viewer", None, "admin")
    changed = people.put("alice", "operator", None, "bob")
    disabled = people.put("alice", None, True, "bob")

    assert made == UserRow("alice", "viewer", False, NOW)
    assert changed == UserRow("alice", "operator", False, NOW)
    assert disabled == UserRow("alice", "operator", True, NOW)
    assert people.users() == [UserRow("admin", "admin", False, NOW), disabled]
    assert noted(store)[1:] == [
        ("user_put", "admin", {"user": "alice", "role": "viewer", "disabled": False}),
        ("user_put", "bob", {"user": "alice", "role": "operator", "disabled": False}),
        ("user_put", "bob", {"user": "alice", "role": "operator", "disabled": True}),
    ]


def test_a_change_that_changes_nothing_is_no_event(people: UserRegistry, store: PlaneStore) -> None:
    before = noted(store)

    people.put("admin", "admin", False, "test")

    assert noted(store) == before


@pytest.mark.parametrize(
    "name",
    ["", "Alice", "a b", "a/b", "../x", "a\n", "-a", ".a", "a" * 65, "é", "a\x00", "\ud800"],
)
def test_a_name_that_does_not_fit_is_refused_with_what_does(
    people: UserRegistry, name: str
) -> None:
    with pytest.raises(BadName, match="a name is up to 64 of a-z"):
        people.put(name, "viewer", None, "admin")

    assert [user.name for user in people.users()] == ["admin"]


@pytest.mark.parametrize("role", [None, "", "root", "Admin", "viewer "])
def test_a_role_that_is_none_is_refused_with_those_there_are(
    people: UserRegistry, role: str | None
) -> None:
    with pytest.raises(BadRole, match="one of viewer, operator, admin"):
        people.put("alice", role, None, "admin")


@pytest.mark.parametrize(
    ("role", "disabled"), [("operator", None), ("viewer", False), (None, True)]
)
def test_the_last_admin_can_be_neither_demoted_nor_disabled(
    people: UserRegistry, role: str | None, disabled: bool | None
) -> None:
    people.put("old", "admin", True, "admin")

    with pytest.raises(LastAdmin, match="make another user an admin first"):
        people.put("admin", role, disabled, "admin")

    people.put("bob", "admin", None, "admin")
    people.put("admin", role, disabled, "bob")
    assert [u.name for u in people.users() if u.role == "admin" and not u.disabled] == ["bob"]


def test_of_a_token_only_the_hash_is_kept_and_it_is_shown_once(tmp_path: Path) -> None:
    store = open_store(fresh(tmp_path))
    people = people_of(store)
    people.put("alice", "viewer", None, "admin")

    token, secret = people.add_token("alice", "laptop", "admin", seconds=60)
    link, code = people.add_link("alice", "admin")
    store.close()

    assert token.hash == hashlib.sha256(secret.encode()).hexdigest()
    assert rows(tmp_path, "SELECT user, label, kind, expires_at FROM tokens") == [
        ("alice", "laptop", "token", NOW + 60)
    ]
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("state.db*"))
    assert token.hash.encode() in stored
    assert link.hash.encode() in stored
    assert secret.removeprefix("loom_").encode() not in stored
    assert code.encode() not in stored


def test_no_event_says_a_secret_or_its_hash(people: UserRegistry, store: PlaneStore) -> None:
    token, secret = people.add_token("admin", "laptop", "admin")
    link, code = people.add_link("admin", "admin")
    cookie, other, proof = people.use_link(code, "cookie", "browser")
    people.revoke(token.id, "admin")

    about = {"user": "admin", "token": token.id, "label": "laptop", "kind": "token"}
    in_browser = {"user": "admin", "token": cookie.id, "label": "browser", "kind": "cookie"}
    assert noted(store)[1:] == [
        ("token_added", "admin", about),
        ("link_added", "admin", {"user": "admin"}),
        ("link_used", "admin", {"user": "admin"}),
        ("token_added", "admin", in_browser),
        ("token_revoked", "admin", about),
    ]
    said = json.dumps(noted(store))
    hashes = (token.hash, link.hash, cookie.hash, cookie.proof)
    for hidden in (secret, code, other, proof, *hashes):
        assert hidden not in said


def test_a_revoked_token_stays_revoked_and_is_noted_once(
    people: UserRegistry, store: PlaneStore, clock: Clock
) -> None:
    token, _ = people.add_token("admin", "", "admin")
    first = people.revoke(token.id, "admin")
    clock.now += 5

    second = people.revoke(token.id, "admin")

    assert second == first
    assert first.revoked_at == NOW
    assert [kind for kind, _, _ in noted(store)].count("token_revoked") == 1


def test_an_unknown_token_or_user_is_refused_with_the_remedy(people: UserRegistry) -> None:
    with pytest.raises(NotFound, match="no token 't-none'; `loom tokens` lists them"):
        people.revoke("t-none", "admin")
    for act in (
        lambda: people.add_token("bob", "", "admin"),
        lambda: people.add_link("bob", "admin"),
        lambda: people.tokens("bob"),
    ):
        with pytest.raises(NotFound, match=r"no user 'bob'.*`loom tokens add bob --role viewer`"):
            act()


def test_a_disabled_user_gets_no_way_in(people: UserRegistry) -> None:
    people.put("alice", "viewer", None, "admin")
    _, code = people.add_link("alice", "admin")
    people.put("alice", None, True, "admin")

    for act in (
        lambda: people.add_token("alice", "", "admin"),
        lambda: people.add_link("alice", "admin"),
        lambda: people.use_link(code, "cookie", ""),
    ):
        with pytest.raises(UserDisabled, match="user alice is disabled"):
            act()


@pytest.mark.parametrize("label", ["x" * 201, "a\nb", "\x1b[2J"])
def test_a_label_that_cannot_be_shown_is_refused(people: UserRegistry, label: str) -> None:
    _, code = people.add_link("admin", "admin")

    with pytest.raises(BadLabel):
        people.add_token("admin", label, "admin")
    with pytest.raises(BadLabel):
        people.use_link(code, "cookie", label)

    assert people.tokens() == []
    people.use_link(code, "cookie", "browser")  # it was not used up


def test_a_link_is_good_once_and_says_so_the_second_time(
    people: UserRegistry, clock: Clock
) -> None:
    _, code = people.add_link("admin", "admin")

    cookie, _, _ = people.use_link(code, "cookie", "browser")
    with pytest.raises(LinkRefused, match="already used; a link works once; ask an admin") as twice:
        people.use_link(code, "cookie", "browser")

    assert twice.value.code == "link_used"
    assert (cookie.user, cookie.kind, cookie.expires_at) == (
        "admin",
        "cookie",
        NOW + COOKIE_LIFETIME,
    )
    assert people.tokens() == [cookie]


def test_a_session_has_two_secrets_and_the_hash_of_each_is_stored(tmp_path: Path) -> None:
    store = open_store(fresh(tmp_path))
    people = people_of(store)
    people.put("admin", "admin", False, "test")
    _, code = people.add_link("admin", "admin")
    session, cookie, proof = people.use_link(code, "cookie", "browser")
    _, other = people.add_link("admin", "admin")
    token, _, none = people.use_link(other, "token", "laptop")
    store.close()

    [database] = tmp_path.rglob("state.db")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        query = "SELECT hash, proof FROM tokens WHERE id = ?"
        rows = [connection.execute(query, [each.id]).fetchone() for each in (session, token)]

    hashes = [hashlib.sha256(each.encode()).hexdigest() for each in (cookie, proof)]
    assert rows[0] == tuple(hashes)
    assert (rows[1][1], none) == ("", "")
    assert len(proof) >= 43
    assert is_good(session, NOW)
    assert not is_good(replace(session, proof=""), NOW)


def test_a_link_is_good_for_a_day(people: UserRegistry, clock: Clock) -> None:
    _, first = people.add_link("admin", "admin")
    _, second = people.add_link("admin", "admin")

    clock.now = NOW + LINK_LIFETIME - 1
    people.use_link(first, "token", "laptop")
    clock.now = NOW + LINK_LIFETIME
    with pytest.raises(LinkRefused, match="older than 24 hours") as over:
        people.use_link(second, "token", "laptop")

    assert over.value.code == "link_over"


@pytest.mark.parametrize("code", ["nothing", "x" * 5000, "\ud800", "é"])
def test_a_code_that_is_none_is_refused(people: UserRegistry, code: str) -> None:
    with pytest.raises(LinkRefused, match="no such link") as unknown:
        people.use_link(code, "cookie", "")

    assert unknown.value.code == "link_unknown"


def test_links_long_over_are_forgotten(
    people: UserRegistry, store: PlaneStore, clock: Clock
) -> None:
    people.add_link("admin", "admin")
    clock.now += LINK_LIFETIME + 8 * 86_400

    link, _ = people.add_link("admin", "admin")

    assert store.state.find(LinkRow) == [link]


def test_the_same_key_makes_one_token_and_one_link(people: UserRegistry) -> None:
    token, _ = people.add_token("admin", "", "admin", key="k")
    people.add_link("admin", "admin", key="k")

    with pytest.raises(KeyUsed, match=f"token {token.id} was made with this key already"):
        people.add_token("admin", "", "admin", key="k")
    with pytest.raises(KeyUsed, match="a link was made with this key already"):
        people.add_link("admin", "admin", key="k")

    assert people.tokens() == [token]


def test_a_secret_made_elsewhere_is_known_once_and_a_changed_one_replaces_it(
    store: PlaneStore, clock: Clock
) -> None:
    people = people_of(store, clock)
    people.know("first", "admin", "loom_a", "loom up")
    people.know("first", "admin", "loom_a", "loom up")
    people.revoke("first", "admin")
    people.know("first", "admin", "loom_a", "loom up")
    [revoked] = people.tokens()

    people.know("first", "admin", "loom_b", "loom up")

    assert revoked.revoked_at == NOW
    new = TokenRow(
        "first", "admin", "first start", hashlib.sha256(b"loom_b").hexdigest(), "token", NOW
    )
    assert people.tokens() == [new]
    assert people.users() == [UserRow("admin", "admin", False, NOW)]
    kinds = [kind for kind, _, _ in noted(store)]
    assert kinds == ["user_put", "token_added", "token_revoked", "token_added"]


def test_every_refusal_is_the_askers_to_mend() -> None:
    refusals = (BadName, BadRole, BadLabel, LastAdmin, UserDisabled, LinkRefused, KeyUsed)

    assert all(issubclass(refusal, UserError) for refusal in refusals)
    assert len({refusal.code for refusal in refusals}) == len(refusals)
