import pytest

from torchloom.errors import UserError
from torchloom.launch.command import LaunchCommand


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("loom launch -n 4 -- python train.py", LaunchCommand(("python", "train.py"), 4)),
        ("loom launch -n auto -- python train.py", LaunchCommand(("python", "train.py"))),
        ("loom launch python train.py", LaunchCommand(("python", "train.py"))),
        ("loom launch -n 2 --nnodes 1:4 -- a -n 3", LaunchCommand(("a", "-n", "3"), 2)),
        ("loom launch -- -n", LaunchCommand(("-n",))),
        ("loom launch -- a -- b", LaunchCommand(("a", "--", "b"))),
        ("loom run a", None),
        ("bash -c loom", None),
        ("loom", None),
    ],
)
def test_a_launch_command_is_read_and_others_are_not(
    words: str, expected: LaunchCommand | None
) -> None:
    assert LaunchCommand.parse(words.split()) == expected


@pytest.mark.parametrize("count", ["0", "-1", "two", "", "1.5", "\u0663", "\u00b2"])
def test_a_count_that_is_none_is_refused(count: str) -> None:
    with pytest.raises(UserError) as raised:
        LaunchCommand.parse(["loom", "launch", "-n", count, "--", "a"])

    assert str(raised.value) == f"loom launch: -n takes a number from 1 or `auto`, not {count!r}"


def test_an_unknown_option_is_refused_with_those_there_are() -> None:
    with pytest.raises(UserError, match="unknown option '--np'; known: -n, --nnodes"):
        LaunchCommand.parse(["loom", "launch", "--np", "4", "--", "a"])


@pytest.mark.parametrize("words", ["loom launch", "loom launch -n 4", "loom launch -n 4 --"])
def test_a_launch_of_nothing_is_refused(words: str) -> None:
    with pytest.raises(UserError, match="no command; write"):
        LaunchCommand.parse(words.split())
