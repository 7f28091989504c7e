import pytest

from torchloom.rules.devices import MEANINGS, Blame, DeviceState, meaning_of, xid_reason


@pytest.mark.parametrize(
    ("blame", "state", "numbers"),
    [
        (Blame.LOST, DeviceState.FAILED, {46, 62, 79, 95, 109, 110, 119, 120, 140, 143}),
        (Blame.DEGRADED, DeviceState.DRAINING, {48, 63, 64, 74, 92, 94, 121}),
        (Blame.APP, None, {8, 11, 13, 31, 32, 43, 45, 68, 69}),
    ],
)
def test_an_error_is_of_the_device_or_of_the_program(
    blame: Blame, state: DeviceState | None, numbers: set[int]
) -> None:
    assert {number for number, one in MEANINGS.items() if one.blame is blame} == numbers
    assert {meaning_of(number).state for number in numbers} == {state}
    assert all(meaning_of(number).words for number in numbers)


def test_of_an_unknown_error_nothing_is_concluded() -> None:
    assert (meaning_of(9999).blame, meaning_of(9999).state) == (Blame.UNKNOWN, None)
    assert xid_reason(79) == "xid_79"
