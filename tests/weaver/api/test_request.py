"""The fields of a request are read once, by their types."""

import inspect
from dataclasses import fields
from typing import Any

import pytest

from torchloom.weaver.api import request
from torchloom.weaver.api.request import (
    _READ,
    _READERS,
    BadRequest,
    EventsRequest,
    JobsRequest,
    KnobsRequest,
    MetricsRequest,
    PutUserRequest,
    SubmitRequest,
    UseLinkRequest,
    WeaverRequest,
)


def test_what_is_left_out_or_null_has_its_default_and_the_unknown_is_ignored() -> None:
    facts = {"job": None, "limit": None, "after": None, "colour": "red"}

    assert EventsRequest.read(facts) == EventsRequest("", 100, {})
    assert UseLinkRequest.read({"code": "c"}).kind == "cookie"
    assert SubmitRequest.read({"spec": [1]}).spec == [1]


def test_numbers_are_clamped_to_what_a_reply_may_hold() -> None:
    assert JobsRequest.read({"limit": 10**9}).limit == 100_000
    assert JobsRequest.read({"limit": -5}).limit == 0
    assert KnobsRequest.read({"wait": 10**9}).wait == 3600.0


@pytest.mark.parametrize(
    ("kind", "facts", "words"),
    [
        (MetricsRequest, {"job": 3}, "job must be text, not 3"),
        (MetricsRequest, {"job": "x" * 10_001}, "job must be text, not 'xxx"),
        (MetricsRequest, {"rank": True}, "rank must be a whole number, not True"),
        (MetricsRequest, {"after": 2**62}, "after must be a whole number, not 46116"),
        (JobsRequest, {"active": None}, "active must be true or false, not None"),
        (JobsRequest, {"ids": "a"}, "ids must be a list of strings, not 'a'"),
        (KnobsRequest, {"wait": "soon"}, "wait must be seconds, not 'soon'"),
        (KnobsRequest, {"wait": -1}, "wait must be seconds, not -1"),
        (EventsRequest, {"after": 7}, "after must map names to values, not 7"),
        (PutUserRequest, {"user": "ann"}, "author is missing"),
        (PutUserRequest, {"author": "root", "disabled": 1}, "disabled must be true or false"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_field(
    kind: type[WeaverRequest], facts: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadRequest, match=words) as refused:
        kind.read(facts)

    assert refused.value.code == "bad_question"


def test_every_field_of_every_request_can_be_read() -> None:
    kinds = [kind for _, kind in inspect.getmembers(request, inspect.isclass)]
    requests = [kind for kind in kinds if issubclass(kind, WeaverRequest)]

    assert len(requests) > 30
    for kind in requests:
        assert all(_READ in one.metadata or one.type in _READERS for one in fields(kind))
