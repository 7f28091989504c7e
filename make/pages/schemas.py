"""Tables of fields from JSON schemas: those of `--json`, of the REST interface, of the stream."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pages.text import code, escaped, first_sentence, section, table

Link = Callable[[str], str]  # from what `$ref` says to Markdown
HEAD = ("field", "type", "meaning")


def fields(schema: Mapping[str, Any], link: Link) -> str:
    """Return the table of the members of an object; those of an object inside are below it."""
    rows = list(_rows(schema, link, ""))
    return table(HEAD, rows) if rows else ""


def _rows(schema: Mapping[str, Any], link: Link, path: str) -> Iterator[tuple[str, str, str]]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        here = f"{path}{name}"
        optional = "" if name in required else " (optional)"
        yield code(here), f"{type_of(field, link)}{optional}", escaped(_meaning(field))
        inner = _object_in(field)
        if inner is not None:
            yield from _rows(inner, link, f"{here}{_steps(field)}.")


def type_of(schema: Any, link: Link) -> str:
    """Return the type of a value in words."""
    if not isinstance(schema, Mapping) or not schema:
        return "any value"
    if "$ref" in schema:
        return link(schema["$ref"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(type_of(each, link) for each in schema[key]))
    if len(schema.get("allOf", ())) == 1:
        return type_of(schema["allOf"][0], link)
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return ", ".join(code(json.dumps(each)) for each in schema["enum"])
    kinds = schema.get("type", "any value")
    return " or ".join(_kind(kind, schema, link) for kind in _listed(kinds))


def _kind(kind: str, schema: Mapping[str, Any], link: Link) -> str:
    if kind == "array":
        return f"list of {type_of(schema.get('items'), link)}"
    values = schema.get("additionalProperties")
    if kind == "object" and isinstance(values, Mapping) and not schema.get("properties"):
        return f"map to {type_of(values, link)}"
    if kind == "string" and schema.get("format") == "date-time":
        return "time (ISO 8601)"
    return kind


def _listed(kinds: Any) -> list[str]:
    return list(kinds) if isinstance(kinds, list) else [kinds]


def _meaning(schema: Any) -> str:
    text = str(schema.get("description", "")) if isinstance(schema, Mapping) else ""
    return f"{text[:1].upper()}{text[1:]}"


def _object_in(field: Any) -> Mapping[str, Any] | None:
    """Return the object that a field holds, alone or in a list or map, if its members are named."""
    if not isinstance(field, Mapping):
        return None
    if field.get("properties"):
        return field
    for key in ("items", "additionalProperties"):
        if (found := _object_in(field.get(key))) is not None:
            return found
    return None


def _steps(field: Mapping[str, Any]) -> str:
    if field.get("properties"):
        return ""
    return "[]" if "items" in field else ".*"


def json_page(folder: Path) -> str:
    """Return the page about what `--json` prints."""
    schemas = {
        path.name.removesuffix(".schema.json"): json.loads(path.read_text())
        for path in sorted(folder.glob("*.schema.json"))
    }
    commands = [name for name, schema in schemas.items() if _is_command(schema)]
    parts = [name for name in schemas if name not in commands]
    return section(
        "# JSON output",
        "Each command below prints one JSON value with `--json`, and nothing else, on standard"
        " output. Fields may be added; those that are here stay. The schemas are in the checkout,"
        " in `docs/json/`, and tests validate the output against them.",
        "## Commands",
        *(_schema(name, schemas[name], "json") for name in commands),
        "## Shared objects",
        *(_schema(name, schemas[name], "json") for name in parts),
    )


def _is_command(schema: Mapping[str, Any]) -> bool:
    return str(schema.get("title", "")).startswith("loom ")


def _schema(name: str, schema: Mapping[str, Any], page: str) -> str:
    def link(ref: str) -> str:
        to = ref.partition("#")[0].removesuffix(".schema.json").rpartition("/")[2]
        return f"[{to or name}](#{to or name})"

    title = str(schema.get("title", name))
    is_list = schema.get("type") == "array"
    body = schema.get("items", {}) if is_list else schema
    base = body.get("$ref") or next((e["$ref"] for e in body.get("allOf", ()) if "$ref" in e), "")
    shape = "A list of objects." if is_list and "properties" in body else ""
    if base:
        what = f"as {link(base)}"
        with_more = ", with:" if body.get("properties") else "."
        shape = (f"A list of objects {what}" if is_list else f"An object {what}") + with_more
    elif not body.get("properties"):
        shape = f"{type_of(schema, link).capitalize()}."
    meaning = _meaning(schema)
    return section(f"### {title} {{#{name}}}", escaped(meaning), shape, fields(body, link))


def named(schemas: Mapping[str, Any], names: list[str], link: Link) -> Iterator[str]:
    """Return a section for each type of an interface."""
    for name in names:
        schema = schemas[name]
        found = fields(schema, link) or f"{type_of(schema, link)}."
        about = escaped(first_sentence(str(schema.get("description", ""))))
        yield section(f"### {name} {{#{anchor(name)}}}", about, found)


def anchor(name: str) -> str:
    """Return the id of a type's section."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def type_link(ref: str) -> str:
    """Return a link to a type of the same page."""
    name = ref.rpartition("/")[2]
    return f"[{name}](#{anchor(name)})"
