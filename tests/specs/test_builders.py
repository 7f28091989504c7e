import logging
from typing import Annotated, Dict, List, Optional  # noqa: UP035 - old hints are tested too

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom.errors import UserError
from torchloom.specs.api import AppDef, Role
from torchloom.specs.arguments import (
    ArgumentError,
    BadArgumentValue,
    MissingArgument,
    UnknownArgument,
    split_pairs,
)
from torchloom.specs.builders import (
    ComponentArgs,
    ComponentFailed,
    component_args_from_str,
    component_help,
    materialize_appdef,
    parse_args,
    parse_mounts,
)


def train(
    script: str,
    *rest: str,
    n: int = 1,
    rate: float = 0.1,
    fast: bool = False,
    env: Optional[Dict[str, str]] = None,  # noqa: UP006, UP045
    sizes: List[int] | None = None,  # noqa: UP006
    shape: tuple[int, str] | None = None,
    limit: int | None = None,
    groups: Optional[Dict[str, List[str]]] = None,  # noqa: UP006, UP045
    config_name: Annotated[str | None, "-cn"] = None,
    h: str | None = None,
) -> AppDef:
    """Train a model.

    Args:
        script: what to run
        n: how many
    """
    return AppDef(script, [Role("main", "", args=[*rest, str(n), str(fast), str(env)])])


def read(*words: str) -> dict[str, object]:
    return vars(parse_args(train, words))


@pytest.mark.parametrize("word", ["True", "true", "TRUE", "1", "yes", "on"])
def test_every_word_for_true_is_true(word: str) -> None:
    assert read("--script", "s", "--fast", word)["fast"] is True


@pytest.mark.parametrize("word", ["False", "false", "0", "no", "off"])
def test_every_word_for_false_is_false(word: str) -> None:
    assert read("--script", "s", "--fast", word)["fast"] is False


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--n", "3"], "n", 3),
        (["-n3"], "n", 3),
        (["-n=-3"], "n", -3),
        (["-h", "gpu.small"], "h", "gpu.small"),
        (["--rate=1e-3"], "rate", 0.001),
        (["--sizes", "1,2"], "sizes", [1, 2]),
        (["--sizes", ""], "sizes", None),
        (["--shape", "2,x"], "shape", (2, "x")),
        (["--limit", "7"], "limit", 7),
        (["--config-name", "x"], "config_name", "x"),
        (["-cn", "x"], "config_name", "x"),
        (["--conf", "x"], "config_name", "x"),
        (["--groups", "a=x,y,b=z"], "groups", {"a": ["x", "y"], "b": ["z"]}),
        (["--env", "A=1,B=x;y,C='a=b,c'"], "env", {"A": "1", "B": "x;y", "C": "a=b,c"}),
    ],
)
def test_words_become_values_of_the_declared_type(
    words: list[str], name: str, value: object
) -> None:
    assert read("--script", "s", *words)[name] == value


def test_everything_after_the_first_free_word_is_the_rest() -> None:
    assert component_args_from_str(train, ["--script", "s", "a", "--n", "2", "--", "--help"]) == (
        ComponentArgs(
            {"script": "s"},
            ["a", "--n", "2", "--", "--help"],
            {
                "n": 1,
                "rate": 0.1,
                "fast": False,
                "env": None,
                "sizes": None,
                "shape": None,
                "limit": None,
                "groups": None,
                "config_name": None,
                "h": None,
            },
        )
    )


def test_a_leading_double_dash_is_dropped_once() -> None:
    assert read("--script", "s", "--", "--", "-x")["rest"] == ["--", "-x"]


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["--scrpt", "s"], UnknownArgument, "no argument '--scrpt'; did you mean '--script'?"),
        (["-z"], UnknownArgument, "no argument '-z'"),
        ([], MissingArgument, "test_builders.train needs --script"),
        (["--script", "s", "--n", "two"], BadArgumentValue, "--n: expected int, got 'two'"),
        (
            ["--script", "s", "--fast", "maybe"],
            BadArgumentValue,
            "--fast: expected bool (True or False), got 'maybe'",
        ),
        (
            ["--script", "s", "--env", "A"],
            BadArgumentValue,
            "--env: expected Dict[str, str] (K=V,K2=V2), got 'A'",
        ),
        (
            ["--script", "s", "--shape", "1"],
            BadArgumentValue,
            "expected tuple[int, str] (a,b), got '1'",
        ),
        (["--script"], ArgumentError, "--script needs a value, as in `--script=VALUE`"),
        (["--script", "--n", "2"], ArgumentError, "--script needs a value"),
        (["--s", "x"], ArgumentError, "--s could mean --script, --sizes, --shape; write it out"),
    ],
)
def test_a_wrong_word_is_told_with_its_argument_and_the_remedy(
    words: list[str], error: type[UserError], message: str
) -> None:
    with pytest.raises(error) as caught:
        read(*words)

    assert message in str(caught.value)
    assert isinstance(caught.value, UserError)


def test_a_component_without_free_words_says_what_it_takes() -> None:
    def plain(a: str = "") -> AppDef:
        return AppDef(a)

    with pytest.raises(
        ArgumentError, match="takes no positional arguments, but got 'x'; its arguments are"
    ):
        parse_args(plain, ["x"])


def test_words_win_over_config_over_defaults_over_the_signature() -> None:
    defaults = {"script": "from defaults", "n": "2", "rate": "0.2", "fast": "yes"}
    config = {"n": 3, "rate": 0.3}

    values = vars(parse_args(train, ["--n", "4"], defaults, config))

    assert [values[name] for name in ("n", "rate", "fast", "script", "limit")] == [
        *(4, 0.3, True),
        *("from defaults", None),
    ]


@pytest.mark.parametrize(
    ("name", "value"), [("n", "x"), ("n", True), ("n", 1.5), ("script", 3), ("script", None)]
)
def test_a_config_value_of_the_wrong_type_is_told(name: str, value: object) -> None:
    with pytest.raises(BadArgumentValue, match=f"--{name}: expected"):
        parse_args(train, ["--script", "s"] if name != "script" else [], None, {name: value})


def test_an_unknown_name_in_a_config_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parse_args(train, ["--script", "s"], {"scrpt": "x"})

    assert "no argument 'scrpt'; did you mean 'script'?; ignored" in caplog.text


def test_help_is_text_and_only_long_help_asks_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    def small(h: str, *words: str, n: int = 2) -> AppDef:
        """Do little.

        Args:
            h: a host
            words: the rest
        """
        return AppDef(h)

    text = (
        "usage: loom run test_builders.small [arguments] [--] [words ...]\n\nDo little.\n\n"
        "arguments:\n"
        "  -h, --h str\n        a host (required)\n"
        "  words ...\n        the rest\n"
        "  -n, --n int\n        (default: 2)\n"
    )

    with pytest.raises(SystemExit) as caught:
        materialize_appdef(small, ["-h", "x", "--help"])

    assert caught.value.code == 0
    assert capsys.readouterr().out == text
    assert component_help(small) == text


def test_help_behind_the_first_free_word_belongs_to_the_program() -> None:
    assert read("--script", "s", "--", "--help")["rest"] == ["--help"]


def test_quoted_hints_are_resolved_where_the_function_was_written() -> None:
    def quoted(n: "int", env: "Optional[Dict[str, int]]" = None) -> "NoSuchName":  # type: ignore[name-defined]  # noqa: F821, UP006, UP045
        return AppDef(str(n))

    assert vars(parse_args(quoted, ["--n", "2", "--env", "a=1"])) == {"n": 2, "env": {"a": 1}}


def test_a_hint_that_cannot_be_resolved_names_the_argument() -> None:
    def quoted(n: "NoSuchName") -> AppDef:  # type: ignore[name-defined]  # noqa: F821
        return AppDef("x")

    with pytest.raises(ArgumentError, match="the type 'NoSuchName' of argument 'n' means nothing"):
        parse_args(quoted, [])


def test_keyword_tunnels_are_refused() -> None:
    def tunnel(**rest: str) -> AppDef:
        return AppDef("x")

    with pytest.raises(ArgumentError, match=r"`\*\*rest` cannot come from a command line"):
        parse_args(tunnel, [])


def test_a_component_that_raises_is_told_with_its_place_and_keeps_the_cause() -> None:
    def broken(a: str = "x") -> AppDef:
        raise RuntimeError("no such data")

    with pytest.raises(ComponentFailed) as caught:
        materialize_appdef(broken, [])

    line = broken.__code__.co_firstlineno + 1
    assert str(caught.value) == (
        f"component test_builders.broken failed at {__file__}:{line}: RuntimeError: no such data"
    )
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert caught.value.exit_code == 2


def test_a_component_that_leaves_the_program_does_not() -> None:
    def leaves() -> AppDef:
        raise SystemExit(3)

    with pytest.raises(ComponentFailed, match="SystemExit: 3"):
        materialize_appdef(leaves, [])


def test_an_error_that_is_already_in_words_is_passed_on() -> None:
    def refuses() -> AppDef:
        raise ArgumentError("give more")

    with pytest.raises(ArgumentError, match=r"^give more$"):
        materialize_appdef(refuses, [])


def test_a_component_that_returns_something_else_is_told() -> None:
    def wrong() -> AppDef:
        return "an app"  # type: ignore[return-value]

    with pytest.raises(UserError, match="expected an AppDef, got str"):
        materialize_appdef(wrong, [])


def test_hostile_words_arrive_as_they_are() -> None:
    words = ["a\nb", "$(rm -rf /)", "'; --", "x" * 10_000, "\u2028", ""]

    app = materialize_appdef(train, ["--script", words[0], "--", *words])

    assert app.name == words[0]
    assert app.roles[0].args[: len(words)] == words


def test_a_hostile_flag_does_not_flood_the_message() -> None:
    with pytest.raises(UnknownArgument) as caught:
        read("--" + "x" * 10_000)

    assert len(str(caught.value)) < 500


def test_an_unreadable_mount_names_the_form() -> None:
    with pytest.raises(UserError) as caught:
        parse_mounts(["type=bind", "src=/a"])

    assert str(caught.value) == (
        "a bind mount needs dst; a mount is"
        " type=bind|volume|device,src=...,dst=...[,readonly][,perm=rwm]"
    )


WORD = st.text(
    st.characters(exclude_characters="=,;'\"", exclude_categories=["C", "Z"]), min_size=1
)


@given(st.dictionaries(WORD.filter(lambda key: key[0] != "-"), WORD, min_size=1))
def test_pairs_written_out_are_read_back(pairs: dict[str, str]) -> None:
    text = ",".join(f"{key}={value}" for key, value in pairs.items())

    assert split_pairs(text) == pairs


@given(st.dictionaries(WORD.filter(lambda key: key[0] != "-"), st.text(), min_size=1))
def test_quotes_keep_any_value_without_them_whole(pairs: dict[str, str]) -> None:
    clean = {key: value.replace('"', "").replace("\\", "") for key, value in pairs.items()}
    text = ";".join(f'{key}="{value}"' for key, value in clean.items())

    assert split_pairs(text) == clean
