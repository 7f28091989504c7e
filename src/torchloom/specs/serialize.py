"""Apps and jobs as JSON and YAML, in and out."""

import re
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from torchloom.errors import shorten
from torchloom.specs.exceptions import SpecError
from torchloom.specs.role import AppDef
from torchloom.specs.shape import APP, at, unfold_app
from torchloom.specs.shape import coerce_app as coerce_app

if TYPE_CHECKING:  # starting an app must not import what describes a job
    from torchloom.specs.jobspec import JobSpec

T = TypeVar("T")
Format = Literal["json", "yaml"]
LONGEST = 1 << 20  # letters of a spec
MOST_VALUES = 100_000
DEEPEST = 100  # levels of a spec
SUFFIXES: dict[str, Format] = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}


def app_to_dict(app: AppDef) -> dict[str, Any]:
    """Return every field as plain data that JSON can hold."""
    for index, role in enumerate(app.roles):
        if role.overrides:
            path = f"roles[{index}].overrides"
            raise SpecError(path, "late values cannot be written; apply them with resolved(role)")
    plain: dict[str, Any] = _plain(unfold_app(app), "", ())
    return plain


def app_from_dict(data: object) -> AppDef:
    """Build an app from plain data; SpecError names the field that does not fit."""
    app: AppDef = APP(data, "")
    return app


def dump_app(app: AppDef, fmt: Format = "json") -> str:
    """Write an app as text."""
    plain = app_to_dict(app)
    if fmt == "json":
        import json

        return json.dumps(plain, indent=2) + "\n"
    import yaml

    return yaml.safe_dump(plain, sort_keys=False, width=100)


def load_app(text: str, fmt: Format | None = None) -> AppDef:
    """Read an app from text; without a format, what begins with a brace is taken for JSON."""
    return app_from_dict(parse(text, fmt))


def load_job(text: str, fmt: Format | None = None) -> "JobSpec":
    """Read a job from text, as `load_app` reads an app."""
    from torchloom.specs.jobspec_shape import job_from_dict

    return job_from_dict(parse(text, fmt))


def load_spec(text: str, fmt: Format | None = None) -> "AppDef | JobSpec":
    """Read an app or a job from text: an app has roles."""
    from torchloom.specs.jobspec_shape import job_from_dict

    data = parse(text, fmt)
    is_app = not isinstance(data, Mapping) or "roles" in data
    return app_from_dict(data) if is_app else job_from_dict(data)


def read_app(path: str | PathLike[str]) -> AppDef:
    """Read an app from a file; its suffix names the format. Errors begin with the path."""
    return _read(path, load_app)


def read_spec(path: str | PathLike[str]) -> "AppDef | JobSpec":
    """Read an app or a job from a file, as `read_app` reads an app."""
    return _read(path, load_spec)


def _read(path: str | PathLike[str], load: Callable[[str, Format | None], T]) -> T:
    file, source = Path(path), shorten(str(path), 200)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecError("", f"cannot be read: {reason}", source) from error
    try:
        return load(text, SUFFIXES.get(file.suffix.lower()))
    except SpecError as error:
        raise SpecError(error.path, error.problem, source) from error


def parse(text: str, fmt: Format | None = None) -> object:
    """Return text as plain data; without a format, what begins with a brace is taken for JSON."""
    fmt = fmt or ("json" if text.lstrip()[:1] == "{" else "yaml")
    if len(text) > LONGEST:
        raise SpecError("", f"is too long: {len(text)} characters, at most {LONGEST}")
    try:
        data = _parse_json(text) if fmt == "json" else _parse_yaml(text)
        if _spread(data, {}) > MOST_VALUES:
            raise SpecError("", f"has more than {MOST_VALUES} values: take out what is not needed")
        return data
    except RecursionError as error:
        raise SpecError("", f"not {fmt.upper()}: nested too deeply") from error


def _parse_json(text: str) -> object:
    import json

    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except ValueError as error:  # also a number of more digits than Python will read
        raise SpecError("", f"not JSON: {error}") from error


def _parse_yaml(text: str) -> object:
    import yaml

    if _deepest(text) > DEEPEST:  # the parser would take its time to find out
        raise SpecError("", "not YAML: nested too deeply")

    class PlainLoader(yaml.SafeLoader):
        """Text, numbers, lists and mappings: a tag that names a Python object is an error."""

    # a date that is not in quotes stays text, as in JSON
    PlainLoader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    PlainLoader.add_constructor("tag:yaml.org,2002:map", _mapping)
    try:
        return yaml.load(text, PlainLoader)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError("", f"not YAML: {' '.join(str(error).split())}") from error


def _deepest(text: str) -> int:
    """Return how deep YAML is nested, at a guess: letters in quotes count as well."""
    depth = deepest = 0
    for bracket in re.findall(r"[][{}]", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    indents = [-1]
    for indent in map(len, re.findall(r"^ *(?=[^ ])", text, re.MULTILINE)):
        while indents[-1] >= indent:
            indents.pop()
        indents.append(indent)
        deepest = max(deepest, len(indents))
    return deepest


def _mapping(loader: Any, node: Any) -> Any:
    """Build a mapping of YAML; keys of a merge (`<<`) may be overridden, others not repeated."""
    for key, _ in node.value:
        if not isinstance(key.value, str):
            raise SpecError("", f"line {key.start_mark.line + 1}: a key must be text")
    _refuse_repeats(key.value for key, _ in node.value if not key.tag.endswith(":merge"))
    return loader.construct_yaml_map(node)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_repeats(key for key, _ in pairs)
    return dict(pairs)


def _refuse_repeats(keys: Iterable[str]) -> None:
    """Refuse a mapping that has a key twice: which value was meant is not known."""
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise SpecError(at("", key), "is given twice: keep one of them")
        seen.add(key)


def _spread(value: object, known: dict[int, int]) -> int:
    """Return how many values these are once every alias of YAML is written out."""
    if not isinstance(value, list | dict):
        return 1
    if id(value) not in known:
        known[id(value)] = 1  # what contains itself is counted once
        members = value.values() if isinstance(value, dict) else value
        known[id(value)] += sum(_spread(member, known) for member in members)
    return known[id(value)]


def _plain(value: Any, path: str, parents: tuple[int, ...]) -> Any:
    """Return a copy made of what JSON has; name the field that holds anything else."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float) and value - value == 0:  # neither NaN nor infinite
        return value
    if id(value) in parents:
        raise SpecError(path, "contains itself")
    inside = (*parents, id(value))
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{index}]", inside) for index, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {str(key): _plain(item, at(path, key), inside) for key, item in value.items()}
    raise SpecError(path, f"cannot be written as JSON: {shorten(repr(value))}")
