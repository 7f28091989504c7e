"""The API does what its description says: no status that is not declared, no shape of its own."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from jsonschema import Draft202012Validator
from schemathesis import Case, GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from ..harness import evidence
from ..harness.server_plane import Plane, Ranks, Server

pytestmark = pytest.mark.process
SHORT, LONG = 4, 200  # requests of each operation, of those that fit and of those that do not
LOGIN, LOGOUT = "/api/login", "/api/logout"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def test_the_page_for_people_has_every_route_and_loads_nothing_from_elsewhere(
    admin: httpx.Client, described: dict[str, Any]
) -> None:
    page = admin.get("/docs")

    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    shown = [
        f"<b>{method.upper()}</b> <code>{path}</code>"
        for path, item in described["paths"].items()
        for method in item
    ]
    assert [each for each in shown if each not in page.text] == []
    assert "src=" not in page.text
    assert "://" not in page.text


@pytest.fixture(scope="module")
def described(admin: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = admin.get("/openapi.json").json()
    return found


@pytest.fixture(scope="module")
def ranks(plane: Plane, server: Server) -> Iterator[Ranks]:
    with Ranks(plane) as living:
        yield living


def strategies(described: dict[str, Any], url: str, mode: GenerationMode) -> Iterator[Any]:
    schema = schemathesis.openapi.from_dict(described)
    schema.config.update(base_url=url)
    for found in schema.get_all_operations():
        yield found.ok().as_strategy(generation_mode=mode)


def walk(described: dict[str, Any], url: str, examples: int, call: Callable[[Case], None]) -> int:
    """Call every operation with data that fits its description and with data that does not."""
    count = 0
    for mode in GenerationMode:
        for strategy in strategies(described, url, mode):
            with contextlib.suppress(Unsatisfiable):  # nothing can be wrong where nothing is sent
                given(case=strategy)(call_with(call, examples))()
                count += 1
    return count


def call_with(call: Callable[[Case], None], examples: int) -> Callable[[Case], None]:
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def once(case: Case) -> None:
        call(case)

    return once


def test_the_description_is_valid_and_every_operation_says_what_can_go_wrong(
    described: dict[str, Any],
) -> None:
    operations = [one for item in described["paths"].values() for one in item.values()]
    named = set(_refs(described))

    assert described["openapi"].startswith("3.1")
    assert named <= {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    for operation in operations:
        assert {"401", "403", "421", "500"} <= set(operation["responses"])
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert list(response["content"]) == ["application/problem+json"]
    for schema in described["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    "examples",
    [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.soak)],
)
def test_no_request_is_answered_with_a_bug_or_an_undeclared_status(
    described: dict[str, Any], server: Server, ranks: Ranks, is_known: bool, examples: int
) -> None:
    token = server.plane.token() if is_known else ""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    statuses: set[int] = set()
    answers: Counter[tuple[str, str, int]] = Counter()

    def call(case: Case) -> None:
        if is_known and case.path == LOGOUT:
            return  # that would be the end of the token
        is_of_a_job = "id" in (case.path_parameters or {}) and not case.path.endswith("/stacks")
        if is_of_a_job and (case.method == "GET" or is_order(case)):  # stacks take real ranks
            case.path_parameters["id"] = "job-1"  # so that something is found, too
        if isinstance(case.body, dict) and "wait" in case.body:
            case.body["wait"] = 0
        answer = case.call(headers=headers)
        answers[case.method, case.path, answer.status_code] += 1
        if case.path != LOGIN:  # where 401 means another secret
            statuses.add(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    walk(described, server.url, examples, call)

    assert statuses >= ({200, 404, 422} if is_known else {200, 401})
    assert (401 in statuses, 500 in statuses) == (not is_known, False)
    if examples == LONG:
        who = "known" if is_known else "stranger"
        samples = [{"request": f"{m} {p}", "status": c, "n": n} for (m, p, c), n in answers.items()]
        evidence.write(f"api-{who}", samples, requests=answers.total(), undeclared=0, bugs=0)


def is_order(case: Case) -> bool:
    """Tell whether this changes a job, and does not end it."""
    verb = case.body.get("verb") if isinstance(case.body, dict) else None
    return case.path.endswith("/commands") and verb != "stop"


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from _refs(each)
    if isinstance(value, list):
        for each in value:
            yield from _refs(each)
