"""Read a spec that somebody sent: JSON or YAML, refused by its field in words, in little time."""

from typing import Any

from pydantic import TypeAdapter

from torchloom.server.problems import BODY, ApiProblem
from torchloom.specs.exceptions import SpecError
from torchloom.specs.jobspec import JobSpec
from torchloom.specs.jobspec_shape import job_from_dict
from torchloom.specs.serialize import Format, parse

FORMATS: dict[str, Format] = {
    "application/json": "json",
    "application/yaml": "yaml",
    "application/x-yaml": "yaml",
    "text/yaml": "yaml",
}
LONGEST_YAML = 1 << 14  # bytes; its parser takes a hundred times as long as JSON's
MOST_YAML = 1000  # letters that begin or end a value
_PART = "Spec"  # begins the names of what a spec is made of
_FIELDS = "docs/jobs.md lists every field"


def read_spec(content_type: str, body: bytes) -> dict[str, Any]:
    """Return a job's spec as plain data that is known to fit; a problem says why it does not."""
    return fit(read(content_type, body))


def read(content_type: str, body: bytes) -> object:
    """Return what was sent as plain data, whatever it is."""
    kind = content_type.partition(";")[0].strip().lower() or "application/json"
    if kind not in FORMATS:
        detail = f"a spec cannot be read from {kind}"
        remedy = "send application/json or application/yaml"
        raise ApiProblem(415, "unknown_type", detail, BODY, remedy)
    return _parsed(FORMATS[kind], body)


def fit(data: object) -> dict[str, Any]:
    """Return plain data that is a spec; a problem names the field that is not."""
    try:
        job_from_dict(data)
    except SpecError as error:
        raise _refusal(422, "bad_spec", error) from error
    assert isinstance(data, dict)
    return data


def yaml_of(spec: dict[str, Any]) -> str:
    """Return a spec as people write it."""
    import yaml

    return yaml.safe_dump(spec, sort_keys=False, width=100, allow_unicode=True)


def prepare() -> None:
    """Load what reads specs, so that the first who sends one does not wait for it."""
    parse("name: x", "yaml")


def schemas() -> dict[str, Any]:
    """Return what OpenAPI says of a spec, and of its parts by name."""
    found = TypeAdapter(JobSpec).json_schema(ref_template=f"#/components/schemas/{_PART}{{model}}")
    parts = {f"{_PART}{name}": part for name, part in found.pop("$defs").items()}
    knobs = found["properties"]["knobs"]
    plain = {"type": ["boolean", "number", "string"], "description": "its value alone"}
    knobs["additionalProperties"] = {"anyOf": [knobs["additionalProperties"], plain]}
    return {"JobSpec": {"additionalProperties": False, **found}, **parts}


def _parsed(fmt: Format, body: bytes) -> object:
    if fmt == "yaml" and (len(body) > LONGEST_YAML or _marks(body) > MOST_YAML):
        detail = f"a spec in YAML has at most {LONGEST_YAML} bytes and some {MOST_YAML} values"
        raise ApiProblem(413, "too_large", detail, BODY, "send it as JSON")
    try:
        return parse(body.decode(), fmt)
    except UnicodeDecodeError:
        raise ApiProblem(400, f"bad_{fmt}", "it is no UTF-8", BODY, "send UTF-8") from None
    except SpecError as error:
        raise _refusal(400, f"bad_{fmt}", error) from error


def _marks(body: bytes) -> int:
    return sum(body.count(mark) for mark in (b"\n", b",", b"[", b"{", b"- "))


def _refusal(status: int, code: str, error: SpecError) -> ApiProblem:
    field = error.path or BODY
    return ApiProblem(status, code, str(error), field, f"{field} {error.problem}; {_FIELDS}")
