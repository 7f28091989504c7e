"""Links that do not count wait longer and longer; those of others, and those that do, do not."""

import pytest

from torchloom.server.problems import ApiProblem
from torchloom.server.security.auth import Attempts


def waits(attempts: Attempts, address: str, account: str = "") -> int:
    """Return for how many seconds the next failure waits."""
    found: ApiProblem | None = None
    try:
        attempts.check(address, account)
    except ApiProblem as refused:
        found = refused
    if found is None:
        return 0
    assert (found.status_code, found.code) == (429, "too_many_logins")
    assert found.headers is not None
    return int(found.headers["Retry-After"])


def test_after_ten_failures_each_doubles_the_wait_to_a_quarter_of_an_hour() -> None:
    now = [0.0]
    attempts = Attempts(lambda: now[0])

    found = []
    for _ in range(25):
        attempts.failed("10.0.0.1")
        found.append(waits(attempts, "10.0.0.1"))
        now[0] += found[-1]
        assert waits(attempts, "10.0.0.1") == 0

    assert found[:9] == [0] * 9
    assert found[9:15] == [3, 5, 9, 17, 33, 65]
    assert set(found[18:]) == {901}
    now[0] += 3600.0
    attempts.failed("10.0.0.1")
    assert waits(attempts, "10.0.0.1") == 0


@pytest.mark.parametrize(
    ("address", "account"), [("10.0.0.2", ""), ("10.0.0.2", "ada"), ("10.0.0.1", "bob")]
)
def test_failures_are_of_one_account_at_one_address(address: str, account: str) -> None:
    attempts = Attempts(lambda: 0.0)
    for _ in range(20):
        attempts.failed("10.0.0.1", "ada")
        attempts.failed("10.0.0.1")

    assert waits(attempts, "10.0.0.1", "ada") > 0
    assert waits(attempts, "10.0.0.1") > 0
    assert waits(attempts, address, account) == 0


def test_a_network_of_ipv6_is_one_address() -> None:
    attempts = Attempts(lambda: 0.0)
    for number in range(20):
        attempts.failed(f"2001:db8::{number}")

    assert waits(attempts, "2001:db8::ffff") > 0
    assert waits(attempts, "2001:db8:1::1") == 0


def test_no_more_is_remembered_than_there_is_room_for() -> None:
    attempts = Attempts(lambda: 0.0)

    for number in range(10_050):
        attempts.failed(str(number))

    assert len(attempts._failed) == 10_000
    attempts.check("0")
