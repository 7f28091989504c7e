"""Who may do what: a row for every route and method, and no route without a row."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from re import Pattern
from typing import Any

import fastapi.routing
from fastapi import FastAPI
from starlette.routing import Mount, compile_path

from torchloom.errors import Failure
from torchloom.weaver.users import ROLES

OPEN, VIEWER, OPERATOR, ADMIN = "open", *ROLES
WEBSOCKET = "WS"
_LEVELS = (OPEN, *ROLES)

Row = tuple[str, str]  # a method, or WS, and the template of a path

POLICY: Mapping[Row, str] = {
    # the dashboard: its files hold no data
    ("GET", "/"): OPEN,
    ("GET", "/jobs"): OPEN,
    ("GET", "/jobs/{path:path}"): OPEN,
    ("GET", "/experiments"): OPEN,
    ("GET", "/experiments/{path:path}"): OPEN,
    ("GET", "/submit"): OPEN,
    ("GET", "/cluster"): OPEN,
    ("GET", "/settings"): OPEN,
    ("GET", "/assets/{path:path}"): OPEN,
    ("GET", "/favicon.ico"): OPEN,
    ("GET", "/favicon.svg"): OPEN,
    ("GET", "/robots.txt"): OPEN,
    # the manual: files of the package
    ("GET", "/manual"): OPEN,
    ("GET", "/manual/{path:path}"): OPEN,
    # health
    ("GET", "/healthz"): OPEN,
    ("GET", "/readyz"): OPEN,
    ("GET", "/docs"): VIEWER,
    ("GET", "/openapi.json"): VIEWER,
    # jobs
    ("GET", "/api/jobs"): VIEWER,
    ("POST", "/api/jobs"): OPERATOR,
    ("POST", "/api/jobs/cancel"): OPERATOR,
    ("POST", "/api/specs/check"): OPERATOR,
    ("GET", "/api/jobs/{id}"): VIEWER,
    ("DELETE", "/api/jobs/{id}"): OPERATOR,
    ("GET", "/api/jobs/{id}/spec"): VIEWER,
    ("GET", "/api/jobs/{id}/events"): VIEWER,
    ("GET", "/api/jobs/{id}/ranks"): VIEWER,
    ("GET", "/api/jobs/{id}/knobs"): VIEWER,
    ("GET", "/api/jobs/{id}/stacks"): VIEWER,
    ("GET", "/api/jobs/{id}/audit"): VIEWER,
    ("GET", "/api/jobs/{id}/checkpoints"): VIEWER,
    ("DELETE", "/api/jobs/{id}/checkpoints/{step}"): OPERATOR,
    ("GET", "/api/jobs/{id}/checkpoints/{step}/verify"): VIEWER,
    ("POST", "/api/jobs/{id}/checkpoints/{step}/verify"): OPERATOR,
    # commands
    ("GET", "/api/jobs/{id}/commands"): VIEWER,
    ("POST", "/api/jobs/{id}/commands"): OPERATOR,
    ("GET", "/api/jobs/{id}/commands/{command}"): VIEWER,
    ("POST", "/api/jobs/{id}/commands/preview"): VIEWER,
    # cluster
    ("GET", "/api/plane"): VIEWER,
    ("GET", "/api/cluster/workers"): VIEWER,
    ("GET", "/api/cluster/resources"): VIEWER,
    ("GET", "/api/cluster/queue"): VIEWER,
    ("GET", "/api/quotas"): VIEWER,
    ("PUT", "/api/quotas/{owner}"): ADMIN,
    ("GET", "/api/retention"): VIEWER,
    # experiments
    ("GET", "/api/experiments"): VIEWER,
    ("GET", "/api/experiments/{run_id}"): VIEWER,
    ("POST", "/api/experiments/compare"): VIEWER,
    # devices
    ("GET", "/api/devices"): VIEWER,
    ("POST", "/api/devices/{uuid:path}/events"): OPERATOR,
    ("POST", "/api/devices/alerts"): OPERATOR,
    ("POST", "/api/devices/preview"): OPERATOR,
    # streams
    ("GET", "/api/jobs/{id}/metrics"): VIEWER,
    ("GET", "/api/jobs/{id}/logs"): VIEWER,
    (WEBSOCKET, "/api/jobs/{id}/stream"): VIEWER,
    (WEBSOCKET, "/api/stream"): VIEWER,
    ("GET", "/metrics"): VIEWER,
    # people
    ("GET", "/login"): OPEN,
    ("POST", "/api/login"): OPEN,
    ("GET", "/api/authority"): OPEN,
    ("POST", "/api/logout"): VIEWER,
    ("GET", "/api/me"): VIEWER,
    ("GET", "/api/me/tokens"): VIEWER,
    ("DELETE", "/api/me/tokens/{id}"): VIEWER,
    ("GET", "/api/users"): ADMIN,
    ("PUT", "/api/users/{name}"): ADMIN,
    ("GET", "/api/tokens"): ADMIN,
    ("POST", "/api/tokens"): ADMIN,
    ("DELETE", "/api/tokens/{id}"): ADMIN,
    ("POST", "/api/links"): ADMIN,
}


class PolicyGap(Failure):
    """The table and the routes are not the same: the server is not to be started."""

    code = "policy_gap"

    def __init__(self, unruled: Iterable[Row], unused: Iterable[Row]) -> None:
        self.unruled, self.unused = tuple(unruled), tuple(unused)
        problems = [f"{_shown(row)} has no row" for row in self.unruled]
        problems += [f"{_shown(row)} has no route" for row in self.unused]
        super().__init__(f"{'; '.join(problems)}; correct POLICY in server/security/policy.py")


@dataclass(frozen=True, slots=True)
class AccessVerdict:
    """What a request needs: a role, or another path, or one of the methods that there are."""

    role: str | None
    methods: tuple[str, ...]


class AccessPolicy:
    """The table, indexed for requests."""

    def __init__(self, rows: Mapping[Row, str] = POLICY) -> None:
        self._rows: list[tuple[str, Pattern[str], str]] = [
            (method, compile_path(path)[0], role) for (method, path), role in rows.items()
        ]

    def judge(self, method: str, path: str) -> AccessVerdict:
        """Return the rule of a path; of several rows for one method, the strictest."""
        wanted = "GET" if method == "HEAD" else method
        found = [(name, role) for name, path_of, role in self._rows if path_of.match(path)]
        roles = [role for name, role in found if name == wanted]
        methods = tuple(sorted({name for name, _ in found}))
        return AccessVerdict(max(roles, key=_LEVELS.index, default=None), methods)


def check(app: FastAPI, rows: Mapping[Row, str] = POLICY) -> None:
    """Refuse an app that has a route without a row, or a table with a row without a route."""
    routes = {_plain(row): row for row in routes_of(app)}
    ruled = {_plain(row): row for row in rows}
    unruled = sorted(routes[row] for row in routes.keys() - ruled.keys())
    unused = sorted(ruled[row] for row in ruled.keys() - routes.keys())
    if unruled or unused:
        raise PolicyGap(unruled, unused)


def routes_of(app: FastAPI) -> Iterator[Row]:
    """Yield every route of an app as a row is written; one that cannot be read has no path."""
    walk: Any = getattr(fastapi.routing, "iter_route_contexts", iter)  # older ones lie flat
    for route in walk(app.routes):
        path = str(getattr(route, "path", None) or repr(route))
        if isinstance(getattr(route, "original_route", route), Mount):
            yield "GET", f"{path}/{{path:path}}"
        elif methods := getattr(route, "methods", None):
            yield from ((method, path) for method in methods - {"HEAD"})
        else:
            yield WEBSOCKET, path


def _plain(row: Row) -> Row:
    """Return a row in which the names of a path's parts do not matter."""
    return row[0], re.sub(r"\{\w+", "{", row[1])


def _shown(row: Row) -> str:
    return f"{row[0]} {row[1]}"
