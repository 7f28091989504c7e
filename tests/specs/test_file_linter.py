import ast
from pathlib import Path

import pytest

from torchloom.specs.file_linter import (
    ArgTypeValidator,
    ComponentFunctionValidator,
    LinterMessage,
    get_fn_docstring,
    validate,
    validate_all,
    why_unsupported,
)


def write(folder: Path, text: str) -> str:
    path = folder / "component.py"
    path.write_text(text)
    return str(path)


def check(folder: Path, text: str, name: str = "train") -> list[str]:
    path = write(folder, text)
    return [str(m).removeprefix(path) for m in ComponentFunctionValidator().check(path, name)]


@pytest.mark.parametrize(
    "hint",
    [
        *("int", "str", "float", "bool", "MyAlias"),
        *("dict[str, str]", "list[int]", "tuple[str, int]", "dict[str, str] | None"),
        *("dict[str, list[str]]", "Dict[str, List[int]]"),
        *("Dict[str, str]", "List[str]", "Optional[str]", "Optional[Dict[str, int]]"),
        *("typing.Dict[str, str]", "typing.Optional[typing.List[str]]", "t.Union[str, None]"),
        *("Union[None, List[float]]", "None | int", "Annotated[str, '-cn']"),
        *("Annotated[Optional[str], '-cn']", "'str'", "'Optional[Dict[str, str]]'", "List['int']"),
    ],
)
def test_old_new_and_quoted_hints_are_accepted(hint: str, tmp_path: Path) -> None:
    assert check(tmp_path, f"def train(a: {hint}) -> AppDef: ...") == []


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        ("bytes", "type 'bytes' is not supported"),
        ("typing.Any", "type 'typing.Any' is not supported"),
        ("set[str]", "type 'set[str]' is not supported"),
        ("int | str", "type 'int | str' allows more than one type"),
        ("Union[int, str, None]", "type 'Union[int, str, None]' allows more than one type"),
        ("None", "'None' is not a type"),
        ("dict[str]", "type 'dict[str]' needs a key and a value type"),
        ("list[str, int]", "type 'list[str, int]' needs exactly one element type"),
        (
            "dict[str, list[bytes]]",
            "type 'dict[str, list[bytes]]' holds 'list[bytes]', which is not a plain type",
        ),
        ("tuple[str]", "type 'tuple[str]' is a tuple of one; write the type alone, or list[T]"),
        ("3", "'3' is not a type"),
        ("'not a ) type'", "\"'not a ) type'\" is not a type"),
    ],
)
def test_a_hint_that_a_command_line_cannot_carry_is_refused(hint: str, reason: str) -> None:
    expression = ast.parse(hint, mode="eval").body

    assert why_unsupported(expression) == reason


def test_a_message_names_file_line_what_and_remedy(tmp_path: Path) -> None:
    text = "\n\ndef train(\n    a: int,\n    b,\n    **rest: str,\n):\n    ...\n"

    assert check(tmp_path, text) == [
        ":5: argument 'b' of component 'train' has no type; write `b: str`, or one of int, float,"
        " str, bool, list[T], dict[K, V], tuple[T1, T2] or any of them with `| None`",
        ":6: component 'train' takes `**rest`, which a command line cannot fill; name each"
        " argument, or take one `dict[str, str]`",
        ":3: component 'train' has no return annotation; write `-> AppDef`",
    ]


@pytest.mark.parametrize("returns", ["AppDef", "specs.AppDef", "'AppDef'", "'torchx.specs.AppDef'"])
def test_every_way_to_name_the_app_is_accepted(returns: str, tmp_path: Path) -> None:
    assert check(tmp_path, f"def train() -> {returns}: ...") == []


def test_another_return_type_is_refused(tmp_path: Path) -> None:
    assert check(tmp_path, "def train() -> list[AppDef]: ...") == [
        ":1: component 'train' returns 'list[AppDef]'; return an AppDef and write `-> AppDef`"
    ]


def test_an_async_component_is_refused(tmp_path: Path) -> None:
    assert check(tmp_path, "async def train() -> AppDef: ...") == [
        ":1: component 'train' is async; make it a plain `def`"
    ]


def test_an_unknown_function_gets_the_nearest_one(tmp_path: Path) -> None:
    assert check(tmp_path, "def trainer() -> AppDef: ...", "trian") == [
        ": no function 'trian' in the file; did you mean 'trainer'?"
    ]


def test_a_function_inside_a_function_is_no_component(tmp_path: Path) -> None:
    text = "def outer() -> AppDef:\n    def train() -> AppDef: ...\n"

    assert check(tmp_path, text) == [
        ": no function 'train' in the file; functions in the file: outer"
    ]


def test_a_function_under_a_condition_is_found(tmp_path: Path) -> None:
    assert check(tmp_path, "if True:\n    def train() -> AppDef: ...\n") == []


def test_a_class_with_build_is_checked_by_what_build_returns(tmp_path: Path) -> None:
    text = "class Train:\n    def build(self) -> {}: ...\n"

    assert check(tmp_path, text.format("AppDef"), "Train") == []
    assert check(tmp_path, text.format("int"), "Train") == [
        ":2: component 'build' returns 'int'; return an AppDef and write `-> AppDef`"
    ]


def test_a_syntax_error_is_one_message_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "x = 1\ndef train(:\n")

    assert validate(path, "train") == [
        LinterMessage(
            "syntax", "syntax error: invalid syntax", 2, 11, path=path, remedy="correct the file"
        )
    ]


@pytest.mark.parametrize("content", [b"x = \0", b"\xff\xfe\x00", b"("])
def test_bytes_that_are_not_python_are_one_message(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "component.py"
    path.write_bytes(content)

    assert len(validate(str(path), "train")) == 1


def test_a_file_that_cannot_be_read_is_one_message(tmp_path: Path) -> None:
    messages = validate(str(tmp_path / "none.py"), "train")

    assert [m.description for m in messages] == ["cannot read the file: No such file or directory"]


def test_own_rules_replace_the_standard_ones(tmp_path: Path) -> None:
    class NeedsDocstring(ComponentFunctionValidator):
        def validate(
            self, app_specs_func_def: ast.FunctionDef | ast.AsyncFunctionDef
        ) -> list[LinterMessage]:
            if ast.get_docstring(app_specs_func_def):
                return []
            return [self._gen_linter_message("no docstring", app_specs_func_def.lineno)]

    path = write(tmp_path, "def train(a): ...\n")

    assert [str(m) for m in validate(path, "train", [NeedsDocstring()])] == [
        f"{path}:1: no docstring"
    ]
    assert len(validate(path, "train", [ArgTypeValidator()])) == 1


def test_all_public_functions_of_a_file_are_checked_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, "def a() -> AppDef: ...\ndef b(): ...\ndef _c(): ...\n")

    checked = validate_all(path)

    assert {name: len(messages) for name, messages in checked.items()} == {"a": 0, "b": 1}


def test_a_google_docstring_becomes_a_description_and_argument_texts() -> None:
    def train(script: str, j: str, *args: str, other: int) -> None:
        """Train a model.

        Longer words: with a colon,
        over two lines.

        Args:
            script (str): what to run,
                where: here

                or there
            j: NODESxPROCESSES
            *args: the rest

        Returns:
            j: not an argument
        """

    assert get_fn_docstring(train) == (
        "Train a model.\n\nLonger words: with a colon,\nover two lines.",
        {
            "script": "what to run, where: here or there",
            "j": "NODESxPROCESSES",
            "args": "the rest",
            "other": "",
        },
    )


def test_what_follows_the_arguments_is_not_theirs() -> None:
    def train(a: str) -> None:
        """Train.

        Arguments:
            a: one
        :return:
            nothing: at all
        """

    assert get_fn_docstring(train) == ("Train.", {"a": "one"})


def test_a_function_without_docstring_is_described_by_its_name() -> None:
    def train(a: str) -> None: ...

    assert get_fn_docstring(train) == ("train (add a docstring to describe it)", {"a": ""})
