"""People over HTTP: links, cookies, tokens and roles of a real plane, each refusal in words."""

import json
import re
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ...harness.home import allowed, until
from ...harness.server_plane import PATIENCE, Plane, Server

pytestmark = pytest.mark.process


@pytest.fixture
def stranger(server: Server) -> Iterator[httpx.Client]:
    with server.client("") as client:
        yield client


def made(admin: httpx.Client, name: str, role: str) -> str:
    """Return a token of a new user."""
    assert admin.put(f"/api/users/{name}", json={"role": role}).status_code == 200
    answer = admin.post("/api/tokens", json={"user": name, "label": "test"})
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    return str(answer.json()["token"])


def link(admin: httpx.Client, user: str = "admin") -> dict[str, Any]:
    answer = admin.post("/api/links", json={"user": user})
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    found: dict[str, Any] = answer.json()
    return found


def refused(answer: httpx.Response) -> tuple[int, str]:
    facts = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, facts["code"]


def test_the_token_of_the_first_start_is_the_admins(admin: httpx.Client) -> None:
    assert admin.get("/api/me").json() == {
        "user": "admin",
        "role": "admin",
        "token": "first",
        "kind": "token",
    }


def test_a_viewer_looks_and_a_refusal_says_what_it_takes(
    admin: httpx.Client, server: Server
) -> None:
    with server.client(made(admin, "vera", "viewer")) as vera:
        assert vera.get("/api/jobs").status_code == 200
        assert vera.get("/api/me").json()["user"] == "vera"
        answer = vera.post("/api/jobs", json={"name": "x"})

    assert refused(answer) == (403, "forbidden")
    assert answer.json()["detail"] == "vera is viewer, and this takes operator"
    assert "`loom tokens user vera --role operator`" in answer.json()["remedy"]


def test_a_link_becomes_a_session_once(admin: httpx.Client, server: Server) -> None:
    new = link(admin)
    assert new["url"] == f"{server.url}/login#{new['code']}"
    origin = {"Origin": server.url}

    with httpx.Client(base_url=server.url, headers=origin) as browser:
        first = browser.post("/api/login", json={"code": new["code"]})
        proof = {"X-Loom-Session": first.json()["session"]}
        cookie = {cookie_name(server): first.cookies[cookie_name(server)]}
        browser.headers.update(proof)
        second = server.client("").post("/api/login", json={"code": new["code"]})
        me = browser.get("/api/me").json()
        write = browser.put("/api/users/olga", json={"role": "operator"})
        without_origin = httpx.put(
            f"{server.url}/api/users/olga", json={"role": "viewer"}, cookies=cookie, headers=proof
        )
        left = browser.post("/api/logout")
        after = httpx.get(f"{server.url}/api/me", cookies=cookie, headers=proof)

    assert (first.status_code, first.headers["cache-control"]) == (200, "no-store")
    attributes = {part.strip().lower() for part in first.headers["set-cookie"].split(";")[1:]}
    assert attributes == {"httponly", "max-age=2592000", "path=/", "samesite=strict"}
    assert first.json()["token"] is None
    assert (first.json()["user"], first.json()["kind"]) == ("admin", "cookie")
    assert refused(second) == (409, "link_used")
    assert second.json()["detail"].startswith("this link was already used; a link works once")
    assert (me["user"], me["kind"]) == ("admin", "cookie")
    assert write.status_code == 200
    assert refused(without_origin) == (403, "foreign_origin")
    assert left.status_code == 204
    assert left.headers["set-cookie"].startswith(f'{cookie_name(server)}="";')
    assert refused(after) == (401, "sign_in_again")
    assert "sign in again" in after.json()["detail"]


def cookie_name(server: Server) -> str:
    return f"loom-{server.url.rpartition(':')[2]}"


def test_half_a_session_opens_nothing_and_makes_no_token(
    admin: httpx.Client, server: Server, stranger: httpx.Client
) -> None:
    logged_in = stranger.post("/api/login", json={"code": link(admin)["code"]})
    name, cookie = cookie_name(server), logged_in.cookies[cookie_name(server)]
    halves = [
        {"Cookie": f"{name}={cookie}"},
        {"Cookie": f"{name}={cookie}", "X-Loom-Session": cookie},
        {"X-Loom-Session": logged_in.json()["session"]},
        {"Authorization": f"Bearer {cookie}"},
        {"Authorization": f"Bearer {logged_in.json()['session']}"},
    ]
    before = admin.get("/api/tokens").json()["items"]

    with httpx.Client(base_url=server.url, timeout=PATIENCE) as thief:
        answers = [
            thief.request(method, path, json=body, headers={"Origin": server.url, **half})
            for half in halves
            for method, path, body in (
                ("GET", "/api/me", None),
                ("GET", "/metrics", None),
                ("POST", "/api/tokens", {"user": "admin"}),
                ("POST", "/api/links", {"user": "admin"}),
                ("PUT", "/api/users/thief", {"role": "admin"}),
                ("POST", "/api/logout", None),
            )
        ]
        by_kind = thief.post(
            "/api/login", json={"code": cookie, "kind": "token"}, headers=halves[0]
        )

    assert {answer.status_code for answer in answers} == {401}
    codes = [answer.json()["code"] for answer in answers[::6]]
    assert codes == [*["sign_in_again"] * 3, "cookie_refused", "unauthenticated"]
    assert refused(by_kind) == (401, "link_unknown")
    assert admin.get("/api/tokens").json()["items"] == before
    stranger.headers["X-Loom-Session"] = logged_in.json()["session"]
    assert stranger.get("/api/me").json()["kind"] == "cookie"


def test_a_second_login_of_a_browser_ends_its_session_before(
    admin: httpx.Client, stranger: httpx.Client
) -> None:
    first = stranger.post("/api/login", json={"code": link(admin)["code"]}).json()
    stranger.headers["X-Loom-Session"] = first["session"]
    second = stranger.post("/api/login", json={"code": link(admin)["code"]}).json()
    mixed = stranger.get("/api/me")
    stranger.headers["X-Loom-Session"] = second["session"]

    listed = {one["id"]: one["revoked_at"] for one in admin.get("/api/tokens").json()["items"]}
    assert refused(mixed) == (401, "sign_in_again")
    assert stranger.get("/api/me").json()["token"] == second["id"]
    assert listed[first["id"]] is not None
    assert listed[second["id"]] is None


def test_a_session_of_both_secrets_makes_tokens_for_an_admin(
    admin: httpx.Client, server: Server, stranger: httpx.Client
) -> None:
    found = stranger.post("/api/login", json={"code": link(admin)["code"]}).json()
    stranger.headers.update({"X-Loom-Session": found["session"], "Origin": server.url})

    made_there = stranger.post("/api/tokens", json={"user": "admin", "label": "by session"})

    assert made_there.status_code == 201
    with server.client(made_there.json()["token"]) as client:
        assert client.get("/api/me").json()["kind"] == "token"


def test_a_link_becomes_a_token_where_one_is_asked_for(
    admin: httpx.Client, server: Server, stranger: httpx.Client
) -> None:
    code = link(admin)["code"]

    answer = stranger.post("/api/login", json={"code": code, "kind": "token", "label": "laptop"})

    assert "set-cookie" not in answer.headers
    assert answer.json()["session"] is None
    with server.client(answer.json()["token"]) as client:
        assert client.get("/api/me").json()["kind"] == "token"


def test_a_revoked_token_ends_at_once(admin: httpx.Client, server: Server) -> None:
    token = made(admin, "rita", "viewer")
    [row] = admin.get("/api/tokens", params={"user": "rita"}).json()["items"]

    with server.client(token) as rita:
        before = rita.get("/api/me").status_code
        ended = admin.delete(f"/api/tokens/{row['id']}").json()
        after = rita.get("/api/me")

    assert before == 200
    assert ended["revoked_at"] is not None
    assert refused(after) == (401, "unauthenticated")


def test_whoever_is_in_sees_and_ends_tokens_of_their_own_and_no_others(
    admin: httpx.Client, server: Server
) -> None:
    tokens = [made(admin, "tess", "viewer") for _ in range(2)]
    strangers = admin.get("/api/tokens", params={"user": "admin"}).json()["items"]

    with server.client(tokens[0]) as tess:
        mine = tess.get("/api/me/tokens").json()["items"]
        other = next(one["id"] for one in mine if one["id"] != tess.get("/api/me").json()["token"])
        ended = tess.delete(f"/api/me/tokens/{other}")
        foreign = tess.delete(f"/api/me/tokens/{strangers[0]['id']}")

    assert [(one["user"], one["revoked_at"]) for one in mine] == [("tess", None)] * 2
    assert (ended.status_code, ended.json()["revoked_at"] is not None) == (200, True)
    assert refused(foreign) == (404, "not_found")
    with server.client(tokens[1]) as other_tess:
        assert refused(other_tess.get("/api/me")) == (401, "unauthenticated")


def test_another_server_and_the_door_end_it_within_two_seconds(
    admin: httpx.Client, server: Server, plane: Plane
) -> None:
    import asyncio

    token = made(admin, "sven", "viewer")
    [row] = admin.get("/api/tokens", params={"user": "sven"}).json()["items"]
    with server.client(token) as sven:
        assert sven.get("/api/me").status_code == 200

        asyncio.run(plane.ask("token_revoke", id=row["id"], author="test"))

        begun = time.monotonic()
        until(lambda: sven.get("/api/me").status_code == 401)
        assert time.monotonic() - begun < allowed(2)


def test_a_disabled_user_is_out_and_the_last_admin_stays(
    admin: httpx.Client, server: Server
) -> None:
    with server.client(made(admin, "dora", "viewer")) as dora:
        admin.put("/api/users/dora", json={"disabled": True})
        assert dora.get("/api/me").status_code == 401
        admin.put("/api/users/dora", json={"disabled": False})
        assert dora.get("/api/me").status_code == 200

    for change in ({"role": "viewer"}, {"disabled": True}):
        answer = admin.put("/api/users/admin", json=change)
        assert refused(answer) == (409, "last_admin")
    names = {user["name"]: user for user in admin.get("/api/users").json()["items"]}
    assert (names["admin"]["role"], names["admin"]["disabled"]) == ("admin", False)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("PUT", "/api/users/Bad%20Name", {"role": "viewer"}, 422, "bad_name"),
        ("PUT", "/api/users/..%2f..%2fx", {"role": "viewer"}, 404, "not_found"),
        ("PUT", "/api/users/new", {}, 422, "bad_role"),
        ("PUT", "/api/users/new", {"role": "king"}, 422, "bad_value"),
        ("PUT", "/api/users/new", {"role": "viewer", "author": "x"}, 422, "bad_value"),
        ("POST", "/api/tokens", {"user": "nobody"}, 404, "not_found"),
        ("POST", "/api/tokens", {"user": "admin", "label": "x\ny"}, 422, "bad_label"),
        ("POST", "/api/tokens", {"user": "admin", "seconds": 0}, 422, "bad_value"),
        ("POST", "/api/links", {"user": "nobody", "role": "king"}, 422, "bad_value"),
        ("DELETE", "/api/tokens/none", None, 404, "not_found"),
        ("GET", "/api/tokens?user=nobody", None, 404, "not_found"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(
    admin: httpx.Client, method: str, path: str, body: Any, status: int, code: str
) -> None:
    answer = admin.request(method, path, json=body)

    assert refused(answer) == (status, code)


def test_the_same_key_makes_one_token(admin: httpx.Client) -> None:
    key = {"Idempotency-Key": "once"}

    first = admin.post("/api/tokens", json={"user": "admin"}, headers=key)
    second = admin.post("/api/tokens", json={"user": "admin"}, headers=key)

    assert first.status_code == 201
    assert refused(second) == (409, "key_reused")


def test_who_did_what_is_in_the_journal_with_its_author(
    admin: httpx.Client, server: Server, plane: Plane
) -> None:
    import asyncio

    with server.client(made(admin, "boss", "admin")) as boss:
        boss.put("/api/users/kim", json={"role": "viewer"})

    events = asyncio.run(plane.ask("events", limit=50))["items"]
    done = [(e["kind"], e["author"], e["facts"].get("user")) for e in events if e["author"]]
    assert ("user_put", "admin", "boss") in done
    assert ("token_added", "admin", "boss") in done
    assert ("user_put", "boss", "kim") in done


def test_no_secret_is_in_a_log_or_an_event(
    admin: httpx.Client, stranger: httpx.Client, plane: Plane, server: Server
) -> None:
    import asyncio

    token, code = made(admin, "leo", "viewer"), link(admin, "leo")["code"]
    with server.client(token) as leo:
        leo.get("/api/me")
        leo.get("/api/users")
    found = stranger.post("/api/login", json={"code": code})
    cookie, proof = found.cookies[cookie_name(server)], found.json()["session"]
    stranger.get("/api/me", headers={"X-Loom-Session": proof})
    stranger.get("/api/me", headers={"Authorization": f"Bearer {cookie}"})
    answers = [
        stranger.post("/api/login", json={"code": code}).text,
        stranger.post("/api/login", json={"code": code, "kind": 5}).text,
        stranger.post("/api/login", json={"code": [code]}).text,
    ]

    events = json.dumps(asyncio.run(plane.ask("events", limit=1000)))
    logs = "".join(path.read_text() for path in plane.folder.glob("*.log"))
    for secret in (token, code, cookie, proof, plane.token()):
        assert secret not in logs + events + "".join(answers)
    arguments = Path(f"/proc/{server.process.pid}/cmdline").read_text()
    assert plane.token() not in arguments


def test_the_page_of_a_link_runs_its_own_script_alone(stranger: httpx.Client) -> None:
    import base64
    import hashlib

    page = stranger.get("/login")

    assert page.status_code == 200
    [script] = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = page.headers["content-security-policy"]
    assert f"script-src 'sha256-{digest}'" in rules
    assert "default-src 'none'" in rules
    assert "frame-ancestors 'none'" in rules
    node = subprocess.run(["which", "node"], capture_output=True, check=False)
    if node.returncode == 0:
        checked = subprocess.run(["node", "--check", "-"], input=script.encode(), check=False)
        assert checked.returncode == 0


SAFE = {
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def test_no_browser_keeps_sniffs_frames_or_passes_on_what_it_is_answered(
    admin: httpx.Client, stranger: httpx.Client
) -> None:
    code = link(admin)["code"]
    html = {"Accept": "text/html"}
    answers = [
        *(admin.get(path) for path in ("/api/me", "/api/jobs", "/api/tokens", "/metrics", "/docs")),
        *(stranger.get(path) for path in ("/login", "/healthz", "/api/me", "/nothing")),
        stranger.get("/docs", headers=html),
        stranger.post("/api/login", json={"code": "wrong"}),
        stranger.post("/api/login", json={"code": code}),
        admin.post("/api/links", json={"user": "admin"}),
        admin.put("/api/users/x", content=b"{", headers={"Content-Type": "application/json"}),
    ]

    for answer in answers:
        assert {name: answer.headers.get(name) for name in SAFE} == SAFE, answer.request.url
        rules = answer.headers["content-security-policy"]
        assert ("default-src 'none'" in rules, "frame-ancestors 'none'" in rules) == (True, True)
        assert len(answer.headers.get_list("cache-control")) == 1


def test_without_tls_there_is_no_authority(stranger: httpx.Client) -> None:
    assert refused(stranger.get("/api/authority")) == (404, "not_found")


def test_a_client_that_guesses_codes_has_to_wait_and_a_good_link_does_not(
    plane: Plane, admin: httpx.Client
) -> None:
    server, good, used = plane.start_server(), link(admin)["code"], link(admin)["code"]

    def login(code: str) -> httpx.Response:
        return guesser.post("/api/login", json={"code": code, "kind": "token"})

    with server.client("") as guesser:
        guesses = [refused(login(f"c{n}")) for n in range(10)]
        blocked = login("c10")
        first, second = login(used), login(used)
        let_in = login(good)
        again = login("c11")

    assert guesses == [(401, "link_unknown")] * 10
    assert refused(blocked) == (429, "too_many_logins")
    assert 1 <= int(blocked.headers["retry-after"]) <= 3
    assert (first.status_code, let_in.status_code) == (200, 200)
    assert refused(second) == (409, "link_used")  # its account has not failed before
    assert refused(again) in ((429, "too_many_logins"), (401, "link_unknown"))


def test_the_time_of_a_refusal_does_not_tell_how_much_of_a_token_is_right(
    plane: Plane, server: Server
) -> None:
    real = plane.token()
    near, far = real[:-1] + ("A" if real[-1] != "A" else "B"), "loom_" + "z" * (len(real) - 5)
    times: dict[str, list[float]] = {near: [], far: []}

    with server.client("") as client:
        for number in range(300):
            for token in (near, far) if number % 2 else (far, near):
                began = time.perf_counter()
                answer = client.get("/api/me", headers={"Authorization": f"Bearer {token}"})
                times[token].append(time.perf_counter() - began)
                assert answer.status_code == 401

    one, other = (statistics.median(found[20:]) for found in times.values())
    assert abs(one - other) < 0.25 * min(one, other) + 0.0003
