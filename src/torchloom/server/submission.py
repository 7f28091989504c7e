"""Read submitted specs, JSON or YAML; a problem names the field, and hostile input costs little."""

import json
from typing import Any

from pydantic import TypeAdapter, ValidationError

from torchloom.server.models.jobs import MOST_ITEMS, JobItem
from torchloom.server.problems import BODY, ApiProblem
from torchloom.specs import jobspec
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
_ITEMS = "items"  # the member by which a batch is known
_REF = "#/components/schemas/"
_PARTS = {  # what a spec is made of, by title; its name in the description is `Spec` and this
    jobspec.Algorithm: "Algorithm",
    jobspec.Backend: "Backend",
    jobspec.Checkpointing: "Checkpointing",
    jobspec.Compression: "Compression",
    jobspec.Distributed: "Distributed",
    jobspec.Elastic: "Elastic",
    jobspec.Framework: "Framework",
    jobspec.Knob: "Knob",
    jobspec.Mesh: "Mesh",
    jobspec.Mode: "Mode",
    jobspec.Policy: "Policy",
    jobspec.PushMode: "PushMode",
    jobspec.Recovery: "Recovery",
    jobspec.Resources: "Resources",
    jobspec.Schedule: "Schedule",
    jobspec.Strategy: "Strategy",
}
_FIELDS = "docs/reference/job-spec.md lists every field"


Batch = list[JobItem | ApiProblem]


def read_submission(content_type: str, body: bytes) -> dict[str, Any] | Batch:
    """Return a job's spec as plain data that is known to fit, or a batch of them.

    A problem says why it does not fit. In a batch it stands in the place of the item alone.
    """
    data = read(content_type, body)
    if not isinstance(data, dict) or data.keys() != {_ITEMS}:
        return fit(data)
    items = data[_ITEMS]
    if not isinstance(items, list) or not items:
        detail = "items: must be a list of jobs, with one at least"
        raise ApiProblem(422, "bad_value", detail, _ITEMS, 'send `{"items": [SPEC, ...]}`')
    if len(items) > MOST_ITEMS:
        detail = f"items: a batch has at most {MOST_ITEMS} jobs, not {len(items)}"
        raise ApiProblem(413, "too_large", detail, _ITEMS, "send several batches")
    return [_item(number, item) for number, item in enumerate(items)]


def _item(number: int, item: object) -> JobItem | ApiProblem:
    """Return one job of a batch, a spec alone or with its options; or the problem it has."""
    place = f"{_ITEMS}.{number}"
    try:
        found = JobItem.model_validate(item if _is_whole(item) else {"spec": item})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join((place, *map(str, first["loc"])))
        return ApiProblem(422, "bad_value", f"{field}: {first['msg']}", field, "correct the item")
    try:
        fit(found.spec)
    except ApiProblem as problem:
        problem.field = f"{place}.{problem.field}"
        return problem
    return found


def _is_whole(item: object) -> bool:
    """Return whether an item has its spec as a member; a spec itself has no such member."""
    return isinstance(item, dict) and "spec" in item


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
    """Return a spec as YAML."""
    import yaml

    return yaml.safe_dump(spec, sort_keys=False, width=100, allow_unicode=True)


def prepare() -> None:
    """Load the parser, so that the first submission does not wait for it."""
    parse("name: x", "yaml")


def schemas() -> dict[str, Any]:
    """Return the OpenAPI schemas of a spec and of its parts, by name."""
    found = _named(TypeAdapter(JobSpec).json_schema(ref_template=_REF + "{model}"))
    own = found.pop("$defs")
    parts = {
        f"Spec{title}": {**own[kind.__name__], "title": title} for kind, title in _PARTS.items()
    }
    knobs = found["properties"]["knobs"]
    plain = {"type": ["boolean", "number", "string"], "description": "its value alone"}
    knobs["additionalProperties"] = {"anyOf": [knobs["additionalProperties"], plain]}
    whole = {"additionalProperties": False, **found, "title": "JobSpec"}
    return {"JobSpec": whole, **parts, "JobBatch": _batch()}


def _named(found: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that refers to the parts of a spec by their names in the description."""
    text = json.dumps(found)
    for kind, title in _PARTS.items():
        text = text.replace(f'"{_REF}{kind.__name__}"', f'"{_REF}Spec{title}"')
    named: dict[str, Any] = json.loads(text)
    return named


def _batch() -> dict[str, Any]:
    """Return the OpenAPI schema of a batch."""
    spec = {"$ref": "#/components/schemas/JobSpec"}
    item = JobItem.model_json_schema()
    item["properties"]["spec"] = spec
    return {
        "title": "JobBatch",
        "description": "Jobs that are stored together, each a spec alone or with its key.",
        "type": "object",
        "required": [_ITEMS],
        "additionalProperties": False,
        "properties": {
            _ITEMS: {
                "type": "array",
                "minItems": 1,
                "maxItems": MOST_ITEMS,
                "items": {"anyOf": [spec, item]},
            }
        },
    }


def _parsed(fmt: Format, body: bytes) -> object:
    if fmt == "yaml" and (len(body) > LONGEST_YAML or _marks(body) > MOST_YAML):
        detail = f"a spec in YAML has at most {LONGEST_YAML} bytes and some {MOST_YAML} values"
        raise ApiProblem(413, "too_large", detail, BODY, "send it as JSON")
    try:
        return parse(body.decode(), fmt)
    except UnicodeDecodeError:
        raise ApiProblem(400, f"bad_{fmt}", "it is not UTF-8", BODY, "send UTF-8") from None
    except SpecError as error:
        raise _refusal(400, f"bad_{fmt}", error) from error


def _marks(body: bytes) -> int:
    return sum(body.count(mark) for mark in (b"\n", b",", b"[", b"{", b"- "))


def _refusal(status: int, code: str, error: SpecError) -> ApiProblem:
    field = error.path or BODY
    return ApiProblem(status, code, str(error), field, f"{field} {error.problem}; {_FIELDS}")
