"""From a component function and words to an AppDef."""

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace, TracebackType
from typing import Any, NamedTuple

from torchloom.errors import LoomError, UserError, shorten
from torchloom.specs.api import AppDef, BindMount, DeviceMount, VolumeMount, coerce_app
from torchloom.specs.api import make_app_handle as make_app_handle
from torchloom.specs.arguments import (
    REQUIRED,
    Argument,
    ArgumentError,
    ArgumentKind,
    MissingArgument,
    UnknownArgument,
    arguments_of,
    display_name,
    get_fn_docstring,
    type_name,
)

_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
MOUNT_FORM = "type=bind|volume|device,src=...,dst=...[,readonly][,perm=rwm]"
_MOUNT_OPTIONS = {
    "type": "type",
    "src": "src",
    "source": "src",
    "dst": "dst",
    "destination": "dst",
    "target": "dst",
    "readonly": "readonly",
    "read_only": "readonly",
    "perm": "perm",
}


def read_words(
    component: str, arguments: Sequence[Argument], words: Sequence[str]
) -> dict[str, Any]:
    """Return the text of each flag; words from the first free one on are the variadic's."""
    flags = _flags(arguments)
    given: dict[str, Any] = {}
    position = 0
    while position < len(words) and _is_flag(words[position], flags):
        argument, text = _match(component, words[position], flags)
        if text is None:
            text = _value_after(component, words, position, flags)
            position += 1
        given[argument.name] = text
        position += 1
    free = list(words[position:])
    return given | _free_words(component, arguments, free[1:] if free[:1] == ["--"] else free)


def asks_for_help(arguments: Sequence[Argument], words: Sequence[str]) -> bool:
    """Tell whether `--help` is among the component's arguments; `-h` may be one of its own."""
    flags = _flags(arguments)
    if "--help" in flags:
        return False
    position = 0
    while position < len(words) and _is_flag(words[position], flags):
        if words[position] == "--help":
            return True
        position += 2 if words[position] in flags else 1
    return False


def component_help(component: Any) -> str:
    """Return the help text of a component function, or of what the finder found."""
    fn: Callable[..., object] = getattr(component, "fn", component)
    name = getattr(component, "name", None) or display_name(fn)
    description, _ = get_fn_docstring(fn)
    arguments = arguments_of(fn)
    free = next(
        (argument for argument in arguments if argument.kind is ArgumentKind.VARIADIC), None
    )
    usage = f"usage: loom run {name} [arguments]" + (f" [--] [{free.name} ...]" if free else "")
    rows = [row for argument in arguments for row in _help_rows(argument)]
    return "\n".join([usage, "", description, "", "arguments:", *rows]) + "\n"


def _flags(arguments: Sequence[Argument]) -> dict[str, Argument]:
    return {flag: argument for argument in arguments for flag in argument.flags}


def _value_after(
    component: str, words: Sequence[str], position: int, flags: Mapping[str, Argument]
) -> str:
    """Return the word after a flag, unless it looks like the next flag."""
    flag = words[position]
    value = words[position + 1] if position + 1 < len(words) else None
    if value is None or value in flags or (value.startswith("--") and " " not in value):
        raise ArgumentError(f"{component}: {flag} needs a value, as in `{flag}=VALUE`")
    return value


def _free_words(
    component: str, arguments: Sequence[Argument], words: list[str]
) -> dict[str, list[str]]:
    variadic = next(
        (argument for argument in arguments if argument.kind is ArgumentKind.VARIADIC), None
    )
    if not words:
        return {}
    if variadic:
        return {variadic.name: words}
    raise ArgumentError(
        f"{component} takes no positional arguments, but got {shorten(words[0])!r};"
        f" its arguments are {', '.join(_flags(arguments)) or 'none'}"
    )


def _is_flag(word: str, flags: Mapping[str, Argument]) -> bool:
    if not word.startswith("-") or word in {"-", "--"}:
        return False
    if word.partition("=")[0] in flags:
        return True
    return not _NEGATIVE_NUMBER.fullmatch(word) and " " not in word


def _match(component: str, word: str, flags: Mapping[str, Argument]) -> tuple[Argument, str | None]:
    """Return the argument a word like --name, --name=text, --na or -j2 means, and its text."""
    head, equals, tail = word.partition("=")
    text = tail if equals else None
    long = "--" + head.removeprefix("--").replace("-", "_")
    if head in flags or long in flags:
        return flags.get(head) or flags[long], text
    if not head.startswith("--"):
        if word[:2] in flags:
            return flags[word[:2]], word[2:]
        raise UnknownArgument(component, head, flags)
    meant = {flags[flag].name: flags[flag] for flag in flags if flag.startswith(long)}
    if len(meant) == 1:
        return next(iter(meant.values())), text
    if meant:
        names = ", ".join(f"--{name}" for name in meant)
        raise ArgumentError(f"{component}: {head} could mean {names}; write it out")
    raise UnknownArgument(component, head, flags)


def _help_rows(argument: Argument) -> list[str]:
    import textwrap

    flags = ", ".join(argument.flags) or f"{argument.name} ..."
    if argument.kind is ArgumentKind.VARIADIC or argument.default in (None, ""):
        note = ""
    elif argument.default is REQUIRED:
        note = "(required)"
    else:
        note = f"(default: {argument.default})"
    head = f"  {flags} {type_name(argument.type)}" if argument.flags else f"  {flags}"
    text = " ".join(part for part in (argument.help, note) if part)
    body = textwrap.wrap(text, 70, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return [head, *body]


ComponentFn = Callable[..., AppDef]
Mount = BindMount | VolumeMount | DeviceMount


class ComponentFailed(UserError):
    """A component raised. The message names the place; `__cause__` keeps the exception."""

    code = "component_failed"

    def __init__(self, component: str, error: BaseException, path: str) -> None:
        self.component = component
        place = _place_of(error.__traceback__, path)
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        super().__init__(f"component {component} failed at {place}: {shorten(what, 500)}")


class MountError(UserError, KeyError, ValueError):
    """A mount cannot be read from its options."""

    code = "bad_mount"
    __str__ = UserError.__str__  # KeyError would print the repr of the message

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; a mount is {MOUNT_FORM}")


class ComponentArgs(NamedTuple):
    """What a component function is called with."""

    positional_args: dict[str, Any]
    var_args: list[str]
    kwargs: dict[str, Any]


def materialize_appdef(
    cmpnt_fn: ComponentFn,
    cmpnt_args: Sequence[str],
    cmpnt_defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> AppDef:
    """Call the component with values from the words, config and defaults; return its app."""
    args = component_args_from_str(cmpnt_fn, cmpnt_args, cmpnt_defaults, config)
    try:
        app = cmpnt_fn(*args.positional_args.values(), *args.var_args, **args.kwargs)
    except LoomError:
        raise
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        code = getattr(inspect.unwrap(cmpnt_fn), "__code__", None)
        path = code.co_filename if code else ""
        raise ComponentFailed(display_name(cmpnt_fn), error, path) from error
    return coerce_app(app)


def component_args_from_str(
    cmpnt_fn: ComponentFn,
    cmpnt_args: Sequence[str],
    cmpnt_args_defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> ComponentArgs:
    """Return the values for a component's arguments, sorted by how Python wants them passed."""
    values = vars(parse_args(cmpnt_fn, cmpnt_args, cmpnt_args_defaults, config))
    result = ComponentArgs({}, [], {})
    for argument in arguments_of(cmpnt_fn):
        value = values[argument.name]
        if argument.kind is ArgumentKind.VARIADIC:
            result.var_args.extend(value)
        elif argument.kind is ArgumentKind.KEYWORD:
            result.kwargs[argument.name] = value
        else:
            result.positional_args[argument.name] = value
    return result


def parse_args(
    cmpnt_fn: ComponentFn,
    cmpnt_args: Sequence[str],
    cmpnt_defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> SimpleNamespace:
    """Return every argument's value: from the words, else config, else defaults, else signature."""
    component, arguments = display_name(cmpnt_fn), arguments_of(cmpnt_fn)
    if asks_for_help(arguments, cmpnt_args):
        sys.stdout.write(component_help(cmpnt_fn))
        raise SystemExit(0)
    given = read_words(component, arguments, cmpnt_args)
    sources = [given, dict(config or {}), dict(cmpnt_defaults or {})]
    for source in sources[1:]:
        _warn_of_unknown(component, source, arguments)
    values: dict[str, Any] = {}
    missing = []
    for argument in arguments:
        found = next((source for source in sources if argument.name in source), None)
        if found is not None:
            values[argument.name] = _value(component, argument, found[argument.name])
        elif argument.kind is ArgumentKind.VARIADIC:
            values[argument.name] = []
        elif argument.default is REQUIRED:
            missing.append(argument.label)
        else:
            values[argument.name] = argument.default
    if missing:
        raise MissingArgument(component, missing)
    return SimpleNamespace(**values)


def parse_mounts(opts: Sequence[str]) -> list[Mount]:
    """Return the mounts that a flat list of options describes; each starts with its `type`."""
    groups: list[dict[str, str]] = []
    for option in opts:
        word, _, value = option.partition("=")
        key = _MOUNT_OPTIONS.get(word.strip())
        if key is None:
            raise MountError(f"unknown mount option {shorten(word)!r}")
        if key == "type":
            groups.append({})
        elif not groups:
            raise MountError(f"mount option {shorten(option)!r} comes before the type")
        groups[-1][key] = value
    return [_mount(group) for group in groups]


def _mount(options: Mapping[str, str]) -> Mount:
    kind = options["type"]
    if kind not in {"bind", "volume", "device"}:
        raise MountError(f"unknown mount type {shorten(kind)!r}")
    needed = ["src"] if kind == "device" else ["src", "dst"]
    if lacking := [key for key in needed if key not in options]:
        raise MountError(f"a {kind} mount needs {' and '.join(lacking)}")
    source, target = options["src"], options.get("dst", options["src"])
    if kind == "bind":
        return BindMount(os.path.expanduser(source), target, "readonly" in options)
    if kind == "volume":
        return VolumeMount(source, target, "readonly" in options)
    permissions = options.get("perm", "rwm")
    if not set(permissions) <= set("rwm"):
        raise MountError(
            f"device permissions {shorten(permissions)!r} have letters other than r, w, m"
        )
    return DeviceMount(source, target, permissions)


def _value(component: str, argument: Argument, value: Any) -> Any:
    if argument.kind is not ArgumentKind.VARIADIC:
        return argument.decode(component, value)
    words = value.split() if isinstance(value, str) else value
    return [argument.decode(component, word) for word in words]


def _warn_of_unknown(
    component: str, source: Mapping[str, Any], arguments: Sequence[Argument]
) -> None:
    known = [argument.name for argument in arguments]
    for name in source.keys() - set(known):
        import logging

        logging.getLogger(__name__).warning("%s; ignored", UnknownArgument(component, name, known))


def _place_of(trace: TracebackType | None, path: str) -> str:
    """Return file:line of the innermost frame in the component's own file, else of any."""
    places: list[tuple[str, int]] = []
    while trace:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    own = [place for place in places if place[0] == path]
    file, line = (own or places or [(path, 0)])[-1]
    return f"{file}:{line}"
