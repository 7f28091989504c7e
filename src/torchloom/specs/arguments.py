"""A component's arguments: what its signature asks for, and how words become their values."""

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from torchloom.errors import UserError, nearest, shorten
from torchloom.specs.dataclass import dataclass

ARGUMENT_SECTIONS = frozenset({"Args", "Arguments", "Parameters", "Params"})
OTHER_SECTIONS = frozenset(
    {"Attributes", "Example", "Examples", "Raises", "Return", "Returns", "Yield", "Yields"}
)
_HEADER = re.compile(r"^(\w+)(?: \w+)?:$")
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:(.*)$")
SUPPORTED = "int, float, str, bool, list[T], dict[K, V], tuple[T1, T2] or any of them with `| None`"
REQUIRED = inspect.Parameter.empty
TRUE_WORDS = frozenset({"true", "1", "yes", "on", "y", "t"})
FALSE_WORDS = frozenset({"false", "0", "no", "off", "n", "f"})
_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
# A key after the first may not start with a dash: FLAGS=--a=1,--b=2 is one value.
_KEY = re.compile(r"(?:^([^=]+)|[,;]\s*([^\s=,;-][^=,;]*))=")
_WRONG = object()
_CONTAINERS: Mapping[Any, Any] = {
    list: list[str],
    dict: dict[str, str],
    tuple: tuple[str],
    typing.List: list[str],  # noqa: UP006  # a component written for old hints may have it bare
    typing.Dict: dict[str, str],  # noqa: UP006
}


class Docstring(NamedTuple):
    """The parts of a docstring that become help text."""

    description: str
    arguments: dict[str, str]


def parse_docstring(text: str) -> Docstring:
    """Split a docstring (already dedented) into its description and one text per argument."""
    description: list[str] = []
    arguments: list[str] = []
    section = ""
    for line in text.strip().splitlines():
        section = _section_after(line, section)
        if section in ARGUMENT_SECTIONS and line[:1].isspace():
            arguments.append(line)
        elif not section:
            description.append(line)
    return Docstring("\n".join(description).strip(), _entries(arguments))


def get_fn_docstring(fn: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """Return a function's description and the description of each of its arguments."""
    described = parse_docstring(inspect.getdoc(fn) or "")
    arguments = dict.fromkeys(inspect.signature(fn).parameters, "") | described.arguments
    return described.description or f"{fn.__name__} (add a docstring to describe it)", arguments


def _section_after(line: str, current: str) -> str:
    """Return the section a line belongs to; a header opens one, other flush text ends arguments."""
    header = _HEADER.match(line)
    if header and header[1] in ARGUMENT_SECTIONS | OTHER_SECTIONS:
        return header[1]
    if current in ARGUMENT_SECTIONS and line and not line[0].isspace():
        return "rest"
    return current


def _entries(lines: list[str]) -> dict[str, str]:
    """Return name -> text; what is indented deeper than the first entry continues its entry."""
    found: dict[str, list[str]] = {}
    margin = min((_indent(line) for line in lines if line.strip()), default=0)
    current: list[str] = []
    for line in lines:
        entry = _ENTRY.match(line.strip()) if _indent(line) == margin else None
        if entry:
            current = found.setdefault(entry[1], [])
            line = entry[2]
        current.append(line.strip())
    return {name: " ".join(part for part in parts if part) for name, parts in found.items()}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


class ArgumentError(UserError, ValueError):
    """A component was given something it cannot take."""

    code = "bad_argument"


class UnknownArgument(ArgumentError):
    """The component has no argument of this name."""

    def __init__(self, component: str, word: str, known: Iterable[str]) -> None:
        known = tuple(known)
        remedy = nearest(word, known) or f"it has {', '.join(known) or 'no arguments'}"
        super().__init__(f"{component} has no argument {shorten(word)!r}; {remedy}")


class MissingArgument(ArgumentError):
    """An argument without a default was not given."""

    def __init__(self, component: str, flags: Iterable[str]) -> None:
        super().__init__(f"{component} needs {', '.join(flags)}; give a value on the command line")


class BadArgumentValue(ArgumentError):
    """A value does not have the type of its argument."""

    def __init__(self, component: str, argument: str, expected: str, got: object) -> None:
        shown = shorten(repr(got))
        super().__init__(f"{component}: {argument}: expected {expected}, got {shown}")


class ArgumentKind(Enum):
    """How Python wants an argument passed."""

    POSITIONAL = "positional"
    VARIADIC = "variadic"
    KEYWORD = "keyword"


_KINDS: Mapping[object, ArgumentKind] = {
    inspect.Parameter.VAR_POSITIONAL: ArgumentKind.VARIADIC,
    inspect.Parameter.KEYWORD_ONLY: ArgumentKind.KEYWORD,
}


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter of a component function, as the command line sees it."""

    name: str
    type: Any
    optional: bool
    default: Any
    kind: ArgumentKind
    flags: tuple[str, ...]
    help: str

    @property
    def label(self) -> str:
        """How messages call it."""
        return self.flags[-1] if self.flags else f"*{self.name}"

    def decode(self, component: str, value: Any) -> Any:
        """Return what the function gets for a word, or for a value from a config file."""
        if isinstance(value, str):
            if not value and self.optional and self.type is not str:
                return None
            decoded = _decoded(value, self.type)
        else:
            decoded = _checked(value, self)
        if decoded is _WRONG:
            raise BadArgumentValue(component, self.label, _expected(self.type), value)
        return decoded


def display_name(fn: Callable[..., object]) -> str:
    """Return the name a component goes by in messages: `dist.ddp`, the module and the function."""
    module = (getattr(fn, "__module__", None) or "").rpartition(".")[2]
    name = getattr(fn, "__name__", type(fn).__name__)
    return name if module in {"", "__main__"} else f"{module}.{name}"


def arguments_of(fn: Callable[..., object]) -> list[Argument]:
    """Return the arguments of a component function, in the order of its signature."""
    _, descriptions = get_fn_docstring(fn)
    return [
        _argument(fn, parameter, descriptions.get(parameter.name, ""))
        for parameter in inspect.signature(fn).parameters.values()
    ]


def _argument(fn: Callable[..., object], parameter: inspect.Parameter, text: str) -> Argument:
    component = display_name(fn)
    if parameter.kind is parameter.VAR_KEYWORD:
        raise ArgumentError(
            f"{component}: `**{parameter.name}` cannot come from a command line;"
            " name each argument, or take one `dict[str, str]`"
        )
    kind = _KINDS.get(parameter.kind, ArgumentKind.POSITIONAL)
    hint = _resolved(fn, parameter)
    hint, shorts = _without_annotated(hint)
    hint, optional = _without_none(hint)
    hint, more_shorts = _without_annotated(hint)
    if not _is_supported(hint):
        raise ArgumentError(
            f"{component}: argument {parameter.name!r} has type {type_name(hint)}; use {SUPPORTED}"
        )
    flags = () if kind is ArgumentKind.VARIADIC else _flags(parameter.name, (*shorts, *more_shorts))
    return Argument(parameter.name, hint, optional, parameter.default, kind, flags, text)


def _flags(name: str, shorts: tuple[str, ...]) -> tuple[str, ...]:
    if len(name) == 1 and not shorts:
        shorts = (f"-{name}",)
    return (*shorts, f"--{name}")


def _resolved(fn: Callable[..., object], parameter: inspect.Parameter) -> Any:
    """Return the type of a parameter; a quoted one is looked up where the function was written."""
    if parameter.annotation is parameter.empty:
        return str
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    names = getattr(inspect.unwrap(fn), "__globals__", {})
    try:
        hints = typing.get_type_hints(holder, globalns=names, include_extras=True)
    except (NameError, SyntaxError, TypeError, AttributeError) as error:
        raise ArgumentError(
            f"{display_name(fn)}: the type {parameter.annotation!r} of argument"
            f" {parameter.name!r} means nothing here ({error}); use {SUPPORTED}"
        ) from error
    return hints[parameter.name]


def _without_annotated(hint: Any) -> tuple[Any, tuple[str, ...]]:
    if typing.get_origin(hint) is not typing.Annotated:
        return hint, ()
    inner, *notes = typing.get_args(hint)
    return inner, tuple(note for note in notes if isinstance(note, str) and note.startswith("-"))


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    inner = [part for part in typing.get_args(hint) if part is not type(None)]
    return (inner[0] if len(inner) == 1 else hint), True


def _is_supported(hint: Any) -> bool:
    parts = typing.get_args(hint)
    if typing.get_origin(hint) in (list, dict, tuple):
        lists = typing.get_origin(hint) is dict and _is_list(parts[-1])
        return all(part in _SCALARS for part in (parts[:-1] if lists else parts))
    return hint in _SCALARS or hint in _CONTAINERS


def _is_list(hint: Any) -> bool:
    """Tell whether a hint is `list[T]` of a plain type, as in `dict[str, list[str]]`."""
    parts = typing.get_args(hint)
    return typing.get_origin(hint) is list and len(parts) == 1 and parts[0] in _SCALARS


def type_name(hint: Any) -> str:
    """Return a type as a person would write it."""
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    return str(hint).replace("typing.", "")


def _expected(hint: Any) -> str:
    """Return a type together with the form in which a command line gives it."""
    forms = {dict: "K=V,K2=V2", list: "a,b", tuple: "a,b", bool: "True or False"}
    form = forms.get(typing.get_origin(hint) or hint)
    return f"{type_name(hint)} ({form})" if form else type_name(hint)


def _to_bool(word: str) -> bool:
    lowered = word.strip().lower()
    if lowered not in TRUE_WORDS | FALSE_WORDS:
        raise ValueError(word)
    return lowered in TRUE_WORDS


_SCALARS: Mapping[Any, Callable[[str], Any]] = {
    str: str,
    int: int,
    float: float,
    bool: _to_bool,
}


def _decoded(word: str, hint: Any) -> Any:
    try:
        return _read(word, _CONTAINERS.get(hint, hint))
    except ValueError:
        return _WRONG


def _read(word: str, hint: Any) -> Any:
    """Return what a word means; ValueError if it means nothing of this type."""
    origin, kinds = typing.get_origin(hint), typing.get_args(hint)
    if origin is dict:
        pairs = split_pairs(word)
        return {_read(key, kinds[0]): _read(value, kinds[1]) for key, value in pairs.items()}
    if origin is list:
        return [_read(part, kinds[0]) for part in split_list(word)]
    if origin is tuple:
        parts = zip(split_list(word), kinds, strict=True)
        return tuple(_read(part, kind) for part, kind in parts)
    return _SCALARS[hint](word)


def _checked(value: Any, argument: Argument) -> Any:
    """Return a config file's value if it has the argument's type; JSON has no tuples."""
    wanted = typing.get_origin(argument.type) or argument.type
    if value is None:
        return None if argument.optional else _WRONG
    if wanted is tuple and isinstance(value, list):
        return tuple(value)
    if wanted is float and type(value) is int:
        return float(value)
    matches = isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
    return value if matches else _WRONG


def split_list(text: str) -> list[str]:
    """Return the parts of `a,b`; blanks around them do not count."""
    return [part.strip() for part in text.split(",")] if text.strip() else []


def split_pairs(text: str) -> dict[str, str]:
    """Return the pairs of `K=V,K2=V2` (or `;`); a comma that no key follows is part of the value.

    Quotes keep separators inside a value: `K="a,B=c"`.
    """
    masked = _QUOTED.sub(lambda quoted: "\0" * len(quoted[0]), text)
    keys = list(_KEY.finditer(masked))
    if text.strip() and not keys:
        raise ValueError(text)
    ends = [key.start() for key in keys[1:]] + [len(text)]
    pairs = {}
    for key, end in zip(keys, ends, strict=True):
        start, stop = key.span(1) if key[1] is not None else key.span(2)
        pairs[text[start:stop].strip()] = _unquoted(text[key.end() : end].strip())
    return pairs


def _unquoted(value: str) -> str:
    wrapped = len(value) >= 2 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if wrapped else value
