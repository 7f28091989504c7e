"""Every `--json` has a schema in docs/json, and what the commands really print keeps to it."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from torchloom.cli.main import main
from torchloom.cli.verbs import VERBS
from torchloom.specs.api import AppState

FOLDER = Path(__file__).parents[2] / "docs" / "json"
SCHEMAS = {path.name: json.loads(path.read_text()) for path in FOLDER.glob("*.schema.json")}
REGISTRY: Registry[Any] = Registry().with_resources(
    (name, Resource(schema, DRAFT202012)) for name, schema in SCHEMAS.items()
)
SPEC = {
    "name": "whole",
    "roles": [
        {
            "name": "a",
            "image": "img",
            "entrypoint": "true",
            "num_replicas": 2,
            "min_replicas": 1,
            "retry_policy": "REPLICA",
            "resource": {"cpu": 1, "gpu": 1, "memMB": 5, "devices": {"efa": 1}},
            "port_map": {"http": 0},
            "metadata": {"kubernetes": {"x": [1]}},
            "mounts": [
                {"type": "bind", "src_path": "/a", "dst_path": "/b"},
                {"type": "volume", "src": "v", "dst_path": "/b"},
                {"type": "device", "src_path": "/dev/x", "dst_path": "/dev/x"},
            ],
            "workspace": {"projects": {".": ""}},
        }
    ],
    "metadata": {"team": "a"},
}

Run = Callable[..., Any]


def problems(name: str, value: object) -> list[str]:
    """Return what is wrong with a value by the schema of this name."""
    schema = {"$ref": f"{name}.schema.json"}
    checker = Draft202012Validator(
        schema, registry=REGISTRY, format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    return [f"{error.json_path}: {error.message}" for error in checker.iter_errors(value)]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process and return the JSON it printed."""

    def run(*words: str) -> Any:
        capsys.readouterr()
        main(list(words))
        return json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_schema_is_one_and_closes_its_objects(name: str) -> None:
    schema = SCHEMAS[name]

    Draft202012Validator.check_schema(schema)

    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"]
    assert _open_objects(schema) == ([] if name != "job.schema.json" else ["$"])


def _open_objects(schema: Any, path: str = "$") -> list[str]:
    """Return where an object of ours names its fields but would let others in."""
    if isinstance(schema, list):
        parts = [_open_objects(part, path) for part in schema]
        return [found for part in parts for found in part]
    if not isinstance(schema, dict):
        return []
    closed = "additionalProperties" in schema or "unevaluatedProperties" in schema
    found = [path] if "properties" in schema and not closed else []
    return found + [
        inner for key, part in schema.items() for inner in _open_objects(part, f"{path}.{key}")
    ]


def _has_json(command: click.Command) -> bool:
    return any("--json" in parameter.opts for parameter in command.params)


def test_every_verb_with_json_has_a_schema() -> None:
    missing = []
    for verb in VERBS:
        command = import_module(f"torchloom.cli.commands.cmd_{verb}").command
        inner = command.commands if isinstance(command, click.Group) else {}
        names = [f"{verb}-{name}" for name, one in inner.items() if _has_json(one)]
        for name in [*([verb] if _has_json(command) else []), *names]:
            if not list(FOLDER.glob(f"{name}.*json")):
                missing.append(name)

    assert missing == []


def test_a_schema_refuses_what_it_does_not_know(ended: Any, printed: Run) -> None:
    ended("a")
    (job,) = printed("ls", "--json")

    assert problems("ls", [job]) == []
    assert problems("ls", [{**job, "colour": "blue"}]) != []
    assert problems("ls", [{**job, "state": "TIRED"}]) != []
    assert problems("stop", [{k: v for k, v in job.items() if k != "handle"}]) != []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ls", ["ls"]),
        ("show", ["show", "good"]),
        ("show", ["status", "bad", "--roles", "trainer"]),
        ("show-spec", ["show", "--spec", "good"]),
        ("show-events", ["show", "--events", "bad"]),
        ("components", ["components"]),
        ("component", ["components", "dist.ddp"]),
        ("engines", ["engines"]),
        ("engine", ["engines", "local"]),
        ("config-show", ["config", "show"]),
        ("config-show", ["config"]),
        ("tracker-list-jobs", ["tracker", "list", "jobs"]),
        ("tracker-list-metadata", ["tracker", "list", "metadata", "good"]),
        ("tracker-list-lineage", ["tracker", "list", "lineage", "good"]),
        pytest.param("doctor", ["doctor"], marks=pytest.mark.process),
        ("plan", ["plan", "train.py"]),
        ("plan", ["plan", "--check", "train.py"]),
        ("plan", ["plan", "--check", "app.json"]),
        ("plan", ["run", "--dryrun", "-n", "2", "train.py"]),
        ("plan-all", ["plan", "--all", "app.json"]),
        ("plan-all", ["plan", "--all", "-cfg", "grace=-1", "train.py"]),
        ("stop", ["stop", "good", "bad"]),
        ("rm", ["rm", "good", "bad"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_what_a_command_prints_keeps_to_its_schema(
    name: str, words: list[str], ended: Any, state: Path, printed: Run
) -> None:
    ended("good", ranks=2)
    ended("bad", at=AppState.FAILED, reason="exit_code_1_rank_0", logs=["why\n"], codes=(1,))
    (state / "runs/bad/events.jsonl").write_text(
        '{"time": "2026-01-01T00:00:00+00:00", "event": "failed", "reason": "x"}\n'
    )
    Path("train.py").write_text("import nosuchmodule\n")
    Path("app.json").write_text(json.dumps(SPEC))
    Path(".loomconfig").write_text("[local]\ngrace = 3\n")
    json_words = (
        [words[0], "--json", *words[1:]]
        if words[1:2] not in (["show"], ["list"])
        else [*words, "--json"]
    )

    value = printed(*json_words)

    assert value
    assert problems(name, value) == []


def test_a_component_of_ones_own_keeps_to_the_schema(printed: Run) -> None:
    Path("mine.py").write_text(
        "import torchx.specs as specs\n"
        "from typing import Optional\n\n"
        "def job(need: str, *words: str, size: Optional[int] = None) -> specs.AppDef:\n"
        '    """Make one.\n\n    Args:\n        need: needed\n    """\n'
        "    return specs.AppDef('x')\n"
    )

    value = printed("components", "mine.py:job", "--json")

    assert problems("component", value) == []
    assert [(a["name"], a["required"]) for a in value["arguments"]] == [
        ("need", True),
        ("words", False),
        ("size", False),
    ]


@pytest.mark.process
def test_a_real_job_keeps_to_the_schemas_all_its_life(
    loom: Any, script: Callable[..., str], until: Any
) -> None:
    name = script(
        "import os, pathlib, sys, time\n"
        "print('out', flush=True); print('err', file=sys.stderr, flush=True)\n"
        "tries = pathlib.Path('tries' + os.environ['RANK'])\n"
        "if not tries.exists(): tries.touch(); time.sleep(0.3); sys.exit(1)\n"
        "time.sleep(60)\n"
    )

    def run(*words: str) -> Any:
        return json.loads(loom(*words, "--json").stdout)

    started = json.loads(loom("run", "--json", "-n", "2", "--max-retries", "1", name).stdout)
    job = started["id"]
    until(lambda: run("show", job)["state"] == "RUNNING" and run("show", job)["attempt"] == 2)
    running = {"ls": run("ls"), "show": run("show", job), "stop": run("stop", job)}
    over = {"ls": run("ls"), "show": run("show", job), "show-events": run("show", job, "--events")}
    lines = [json.loads(line) for line in loom("logs", job, "--json").stdout.splitlines()]
    spec = run("show", job, "--spec")

    assert problems("run", started) == []
    for name, value in (*running.items(), *over.items(), ("show-spec", spec)):
        assert problems(name, value) == [], name
    assert [problems("logs", line) for line in lines] == [[]] * len(lines)
    assert len(lines) >= 4
    assert {event["event"] for event in over["show-events"]} == {
        "running",
        "exit",
        "started",
        "restart",
        "cancelled",
    }
    assert problems("rm", run("rm", job)) == []
