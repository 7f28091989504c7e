"""An address that failed too often waits a minute; others do not."""

import pytest

from torchloom.server.attempts import Attempts
from torchloom.server.problems import ApiProblem


def test_ten_failures_within_a_minute_are_enough_for_one_address() -> None:
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    for second in range(10):
        now[0] = float(second)
        attempts.check("10.0.0.1")
        attempts.failed("10.0.0.1")

    with pytest.raises(ApiProblem) as refused:
        attempts.check("10.0.0.1")
    attempts.check("10.0.0.2")
    now[0] = 60.0
    attempts.check("10.0.0.1")

    assert (refused.value.status_code, refused.value.code) == (429, "too_many_logins")
    assert refused.value.headers == {"Retry-After": "52"}


def test_no_more_addresses_are_remembered_than_there_is_room_for() -> None:
    attempts = Attempts(lambda: 0.0)

    for number in range(10_050):
        attempts.failed(str(number))

    assert len(attempts._failed) == 10_000
    attempts.check("0")
