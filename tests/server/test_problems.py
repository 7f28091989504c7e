"""Each kind of error has one status, and any letters may be in its words."""

import json

import pytest

from torchloom.errors import Ambiguous, Failure, LoomError, NotFound, UserError
from torchloom.server.problems import STATUS, WORDS, declared, explained, problem_response
from torchloom.server.weaver_link import WeaverAway, WeaverRefused


def refused(code: str, exit_code: int = 2) -> WeaverRefused:
    return WeaverRefused({"error": "no", "code": code, "exit_code": exit_code})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFound("job", "x"), 404),
        (Ambiguous("job", "x", ["xa", "xb"]), 409),
        (UserError("no"), 422),
        (Failure("no"), 409),
        (refused("bad_value"), 422),
        (refused("bad_question"), 422),
        (refused("unschedulable"), 409),
        (refused("aborted", 1), 409),
        (refused("internal", 1), 500),
        (WeaverAway("x"), 503),
    ],
)
def test_an_error_has_the_status_of_its_code_or_of_whose_fault_it_is(
    error: LoomError, status: int
) -> None:
    response = explained(error)

    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert ("retry-after" in response.headers) == (status == 503)


def test_half_a_letter_and_a_flood_of_them_are_told_all_the_same() -> None:
    response = problem_response(422, "x", "\ud800" + "y" * 100_000, "a\0b", "\udfff")

    found = json.loads(bytes(response.body))
    assert (found["detail"][0], found["field"], found["remedy"]) == ("\ud800", "a\0b", "\udfff")
    assert len(response.body) < 2000


def test_every_status_of_the_table_can_be_declared() -> None:
    assert set(STATUS.values()) <= set(WORDS)
    assert list(declared(404, 503)) == [404, 503]
