"""Which outputs a launch shows, and behind what: torchrun's rules under its name, else ours."""

import pytest

from torchloom.launch.grammar.command import AS_TORCHRUN, LaunchCommand
from torchloom.launch.hosts.sites import Site
from torchloom.launch.logs.display import Display


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("", ["", "", "", ""]),
        ("--tee 3", ["[tr4]:", "[tr4]:", "[tr5]:", "[tr5]:"]),
        ("--tee 1", ["[tr4]:", "", "[tr5]:", ""]),
        ("-r 3", [None, None, None, None]),
        ("-r 3 -t 2", [None, "[tr4]:", None, "[tr5]:"]),
        ("-r 0:1 -t 1:2", [None, "", "", "[tr5]:"]),
        ("-t 3 --local-ranks-filter 1", [None, None, "[tr5]:", "[tr5]:"]),
    ],
)
def test_torchruns_words_say_what_is_shown(words: str, shown: list[str | None]) -> None:
    asked = LaunchCommand.parse([AS_TORCHRUN, *words.split(), "x.py"], {})

    assert told(Display.of(asked)) == shown


def test_a_template_of_the_users_stands_before_the_lines() -> None:
    env = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${rank}> {role_name}.{local_rank}/{rank} "}
    asked = LaunchCommand.parse([AS_TORCHRUN, "--tee", "1", "x.py"], env)

    assert told(Display.of(asked))[0] == "<$4> tr.0/4 "


def test_our_own_lines_begin_with_the_rank() -> None:
    plain = LaunchCommand.parse(["-n", "2", "x.py"], {})
    kept = LaunchCommand.parse(["-n", "2", "--redirects", "1", "x.py"], {})

    assert told(Display.of(plain)) == ["[rank4]: ", "[rank4]: ", "[rank5]: ", "[rank5]: "]
    assert told(Display.of(kept)) == [None, "[rank4]: ", None, "[rank5]: "]


@pytest.mark.parametrize("words", ["", "--tee 0:1,1:3 -r 2 --local-ranks-filter 0,1"])
def test_it_survives_a_command_line(words: str) -> None:
    asked = LaunchCommand.parse([AS_TORCHRUN, *words.split(), "x.py"], {})
    show = Display.of(asked, Site("mine", noise=("WARN: .*", "\\d+")))

    assert (show.noise, show.site) == (("WARN: .*", "\\d+"), "mine")
    assert Display.from_text(show.to_text()) == show


def told(show: Display) -> list[str | None]:
    """Return what stands before stdout and stderr of local ranks 0 and 1, which are 4 and 5."""
    places = [(rank, stream) for rank in (0, 1) for stream in ("stdout", "stderr")]
    return [show.before(stream, "tr", 4 + rank, rank) for rank, stream in places]
