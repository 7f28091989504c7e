"""Apps as JSON and YAML, in and out."""

from os import PathLike
from pathlib import Path
from typing import Any, Literal

from torchloom.errors import shorten
from torchloom.specs.coerce import coerce_app as coerce_app
from torchloom.specs.exceptions import SpecError
from torchloom.specs.role import AppDef
from torchloom.specs.shape import APP, at
from torchloom.specs.unfold import unfold_app

Format = Literal["json", "yaml"]
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
    return app_from_dict(_parse(text, fmt or ("json" if text.lstrip()[:1] == "{" else "yaml")))


def read_app(path: str | PathLike[str]) -> AppDef:
    """Read an app from a file; its suffix says the format. Errors begin with the path."""
    file, source = Path(path), shorten(str(path), 200)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecError("", f"cannot be read as an app: {reason}", source) from error
    try:
        return load_app(text, SUFFIXES.get(file.suffix.lower()))
    except SpecError as error:
        raise SpecError(error.path, error.problem, source) from error


def _parse(text: str, fmt: Format) -> object:
    try:
        return _parse_json(text) if fmt == "json" else _parse_yaml(text)
    except RecursionError as error:
        raise SpecError("", f"not {fmt.upper()}: nested too deeply") from error


def _parse_json(text: str) -> object:
    import json

    try:
        return json.loads(text)
    except ValueError as error:  # also a number of more digits than Python will read
        raise SpecError("", f"not JSON: {error}") from error


def _parse_yaml(text: str) -> object:
    import yaml

    class Loader(yaml.SafeLoader):
        """Text, numbers, lists and mappings: a tag that names a Python object is an error."""

    # a date that is not in quotes stays text, as in JSON
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        return yaml.load(text, Loader)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError("", f"not YAML: {' '.join(str(error).split())}") from error


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
