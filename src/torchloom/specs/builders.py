"""From a component function and words to an AppDef."""

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace, TracebackType
from typing import Any, NamedTuple

from torchloom.errors import LoomError, UserError, shorten
from torchloom.specs.api import AppDef, BindMount, DeviceMount, VolumeMount, coerce_app
from torchloom.specs.arguments import (
    REQUIRED,
    Argument,
    Kind,
    MissingArgument,
    UnknownArgument,
    arguments_of,
    display_name,
)
from torchloom.specs.command_line import asks_for_help, component_help, read_words
from torchloom.specs.handles import make_app_handle as make_app_handle

ComponentFn = Callable[..., AppDef]
Mount = BindMount | VolumeMount | DeviceMount

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


class ComponentFailed(UserError):
    """A component raised. The message says where; `__cause__` keeps the exception."""

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
    """Call the component with what the words, config and defaults say; return its app."""
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
        if argument.kind is Kind.VARIADIC:
            result.var_args.extend(value)
        elif argument.kind is Kind.KEYWORD:
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
        elif argument.kind is Kind.VARIADIC:
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
        raise MountError(f"device permissions {shorten(permissions)!r} have letters beside r, w, m")
    return DeviceMount(source, target, permissions)


def _value(component: str, argument: Argument, value: Any) -> Any:
    if argument.kind is not Kind.VARIADIC:
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
