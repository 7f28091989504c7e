"""Hostile specs by class: each is refused by its field, with a remedy; the server lives on."""

from typing import Any

import httpx
import pytest

from ..specs import hostile

pytestmark = pytest.mark.process
HOSTILE = hostile.read_table()
WHOLE = {"": "body", "app": "job"}  # how a door calls what is wrong as a whole


def submit(client: httpx.Client, name: str, path: str = "/api/jobs") -> httpx.Response:
    kind = "application/json" if name.endswith(".json") else "application/yaml"
    content = HOSTILE[name].content
    return client.post(path, content=content, headers={"Content-Type": kind})


def test_every_hostile_spec_is_a_problem_with_a_field_and_a_remedy(admin: httpx.Client) -> None:
    answers = {name: submit(admin, name) for name in HOSTILE}

    assert len(answers) >= 200
    for name, answer in answers.items():
        problem = answer.json()
        assert answer.status_code in (400, 413, 422), (name, problem)
        assert answer.headers["content-type"] == "application/problem+json"
        if answer.status_code != 413:  # too large to be looked into
            assert problem["field"] == WHOLE.get(HOSTILE[name].field, HOSTILE[name].field), name
        assert problem["remedy"], name
        assert len(answer.content) < 3000
    assert admin.get("/api/jobs").json()["items"] == []


def test_a_look_at_a_hostile_spec_says_what_submitting_it_would(admin: httpx.Client) -> None:
    for name in HOSTILE:
        answer, told = submit(admin, name, "/api/specs/check"), submit(admin, name).json()

        assert answer.status_code in (200, 413), (name, answer.text)
        found = answer.json()
        problem = found["refused"] if answer.status_code == 200 else found  # too large to be read
        assert (problem, found.get("ok", False)) == (told, False), name


@pytest.mark.parametrize(
    ("distributed", "field"),
    [
        ({"strategy": "fsdp", "mesh": {"dp_shard": 3}}, "distributed.mesh"),
        ({"strategy": "tensor_parallel", "mesh": {"dp_shard": 4}}, "distributed.mesh.dp_shard"),
        ({"strategy": "tensor_parallel"}, "hyperparameters.hidden"),
        ({"strategy": "parameter_server", "servers": 5}, "distributed.servers"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_before_anything_starts(
    admin: httpx.Client, distributed: dict[str, Any], field: str
) -> None:
    spec = {"name": "a", "model": "mlp", "dataset": "synthetic", "resources": {"workers": 4}}
    spec |= {"distributed": distributed, "hyperparameters": {"hidden": 30}}

    answer = admin.post("/api/jobs", json=spec)

    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["field"]) == (422, "bad_spec", field)
    assert admin.get("/api/jobs").json()["items"] == []


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"{", "application/json", 400, "bad_json"),
        (b"\xff\xfe", "application/json", 400, "bad_json"),
        (b'{"name": "\\ud800", "script": "x"}', "application/json", 422, "bad_spec"),
        (b"[" * 100_000, "application/json", 400, "bad_json"),
        (b"name: [", "application/yaml", 400, "bad_yaml"),
        (b"#" * 40_000, "application/yaml", 413, "too_large"),
        (b"<job/>", "application/xml", 415, "unknown_type"),
        (b"", "application/json", 400, "bad_json"),
    ],
)
def test_what_cannot_be_read_says_so(
    admin: httpx.Client, content: bytes, kind: str, status: int, code: str
) -> None:
    answer = admin.post("/api/jobs", content=content, headers={"Content-Type": kind})

    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code)
    assert problem["field"]
    assert problem["remedy"]
