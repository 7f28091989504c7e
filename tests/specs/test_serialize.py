"""Apps as JSON and YAML: whole there and back, and errors that name the field."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.specs import (
    AppDef,
    BindMount,
    DeviceMount,
    Resource,
    RetryPolicy,
    Role,
    SpecError,
    VolumeMount,
    Workspace,
    app_from_dict,
    app_to_dict,
    dump_app,
    load_app,
    read_app,
)

TEXT = st.text(max_size=12)
NUMBER = st.integers(-(2**63), 2**63)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBER | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
RESOURCES = st.builds(
    Resource,
    cpu=NUMBER,
    gpu=NUMBER,
    memMB=NUMBER,
    capabilities=st.dictionaries(TEXT, PLAIN, max_size=2),
    devices=st.dictionaries(TEXT, NUMBER, max_size=2),
    tags=st.dictionaries(TEXT, PLAIN, max_size=2),
)
MOUNTS = (
    st.builds(BindMount, TEXT, TEXT, st.booleans())
    | st.builds(VolumeMount, TEXT, TEXT, st.booleans())
    | st.builds(DeviceMount, TEXT, TEXT, TEXT)
)
ROLES = st.builds(
    Role,
    name=TEXT,
    image=TEXT,
    min_replicas=st.none() | NUMBER,
    entrypoint=TEXT,
    args=st.lists(TEXT, max_size=3),
    env=st.dictionaries(TEXT, TEXT, max_size=3),
    num_replicas=NUMBER,
    max_retries=NUMBER,
    retry_policy=st.sampled_from(RetryPolicy),
    resource=RESOURCES,
    port_map=st.dictionaries(TEXT, NUMBER, max_size=2),
    metadata=st.dictionaries(TEXT, PLAIN, max_size=3),
    mounts=st.lists(MOUNTS, max_size=3),
    workspace=st.none() | st.builds(Workspace, st.dictionaries(TEXT, TEXT, max_size=2)),
    overrides=st.just({}),
)
APPS = st.builds(
    AppDef,
    name=TEXT,
    roles=st.lists(ROLES, max_size=2),
    metadata=st.dictionaries(TEXT, TEXT, max_size=2),
)


@given(APPS, st.sampled_from(["json", "yaml"]))
@settings(max_examples=150, deadline=None)
def test_an_app_survives_text_whole(app: AppDef, fmt: Any) -> None:
    assert load_app(dump_app(app, fmt), fmt) == app


@given(PLAIN | st.dictionaries(st.sampled_from(["name", "roles", "metadata"]), PLAIN))
def test_any_data_is_an_app_or_a_spec_error(data: Any) -> None:
    message = ""
    try:
        app = app_from_dict(data)
        assert app_from_dict(app_to_dict(app)) == app
    except SpecError as error:
        message = str(error)

    assert "\n" not in message


@given(st.text(), st.sampled_from(["json", "yaml", None]))
@settings(deadline=None)
def test_any_text_is_an_app_or_a_spec_error(text: str, fmt: Any) -> None:
    with pytest.raises(SpecError):
        load_app(text, fmt)


def role(**changes: Any) -> dict[str, Any]:
    return {"name": "app", "roles": [{"name": "a", "image": "b", **changes}]}


def test_what_is_left_out_has_its_default() -> None:
    assert app_from_dict(role()) == AppDef("app", [Role("a", "b")])


def test_a_role_is_written_with_every_field() -> None:
    app = AppDef("app", [Role("a", "b", mounts=[VolumeMount("v", "/v")], resource=Resource())])

    assert app_to_dict(app) == {
        "name": "app",
        "roles": [
            {
                "name": "a",
                "image": "b",
                "min_replicas": None,
                "entrypoint": "<MISSING>",
                "args": [],
                "env": {},
                "num_replicas": 1,
                "max_retries": 0,
                "retry_policy": "APPLICATION",
                "resource": {
                    "cpu": 1,
                    "gpu": 0,
                    "memMB": 128,
                    "capabilities": {},
                    "devices": {},
                    "tags": {},
                },
                "port_map": {},
                "metadata": {},
                "mounts": [{"type": "volume", "src": "v", "dst_path": "/v", "read_only": False}],
                "workspace": None,
            }
        ],
        "metadata": {},
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (role(resource={"cpu": "two"}), "roles[0].resource.cpu: expected int, got 'two'"),
        (role(resource={"cpu": True}), "roles[0].resource.cpu: expected int, got True"),
        (role(resource={"cpu": 1.0}), "roles[0].resource.cpu: expected int, got 1.0"),
        (
            role(entrypont="x"),
            "roles[0].entrypont: unknown field; did you mean 'entrypoint'?",
        ),
        (
            {"name": "app", "roles": [{"name": "a"}]},
            "roles[0].image: missing, and it has no default",
        ),
        ({"name": "app"}, "roles: missing, and it has no default"),
        (role(args="x"), "roles[0].args: expected a list, got 'x'"),
        (
            role(args=["x", 3]),
            "roles[0].args[1]: expected str, got 3; put it in quotes if text is meant",
        ),
        (
            role(env={"DEBUG": True}),
            "roles[0].env.DEBUG: expected str, got True; put it in quotes if text is meant",
        ),
        (role(env={"a b": None}), "roles[0].env['a b']: expected str, got None"),
        (role(env=["A=1"]), "roles[0].env: expected a mapping, got ['A=1']"),
        (role(port_map={"http": "80"}), "roles[0].port_map.http: expected int, got '80'"),
        (
            role(retry_policy="never"),
            "roles[0].retry_policy: expected one of REPLICA, APPLICATION, ROLE, got 'never'",
        ),
        (
            role(mounts=[{"type": "tmpfs"}]),
            "roles[0].mounts[0].type: expected one of BIND, VOLUME, DEVICE, got 'tmpfs'",
        ),
        (role(mounts=[{}]), "roles[0].mounts[0].type: missing; one of bind, volume, device"),
        (
            role(mounts=[{"type": "bind", "src_path": "/a"}]),
            "roles[0].mounts[0].dst_path: missing, and it has no default",
        ),
        (
            role(mounts=[{"type": "device", "src_path": "a", "dst_path": "b", "read_only": True}]),
            "roles[0].mounts[0].read_only: unknown field; known: src_path, dst_path, permissions",
        ),
        (role(workspace=3), "roles[0].workspace: expected a mapping, got 3"),
        (role(overrides={}), "roles[0].overrides: unknown field;"),
        ({"name": 3, "roles": []}, "name: expected str, got 3; put it in quotes if text is meant"),
        ({"name": "a", "roles": {}}, "roles: expected a list, got {}"),
        ([], "app: expected a mapping, got []"),
        (None, "app: expected a mapping, got None"),
        ({"name": "a", "roles": [], 3: 4}, "[3]: unknown field; known: name, roles, metadata"),
        (role(**{"x" * 10_000: 1}), f"roles[0]['{'x' * 76}...]: unknown field;"),
    ],
)
def test_an_error_names_the_field(data: Any, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        app_from_dict(data)

    assert str(caught.value)[: len(message)] == message
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("spelled", ["replica", "REPLICA", "Replica", RetryPolicy.REPLICA])
def test_a_policy_is_read_in_any_case(spelled: str) -> None:
    assert app_from_dict(role(retry_policy=spelled)).roles[0].retry_policy is RetryPolicy.REPLICA


def test_a_workspace_may_be_one_path() -> None:
    assert app_from_dict(role(workspace="src")).roles[0].workspace == Workspace({"src": ""})


def test_yaml_is_data_and_never_runs_anything(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    text = f"name: !!python/object/apply:os.system ['touch {witness}']\nroles: []\n"

    with pytest.raises(SpecError, match="not YAML: could not determine a constructor"):
        load_app(text, "yaml")

    assert not witness.exists()


def test_a_date_in_yaml_stays_text() -> None:
    text = "name: a\nmetadata: {day: 2026-01-31, more: 2026-13-99}\nroles: []\n"

    assert load_app(text) == AppDef("a", [], {"day": "2026-01-31", "more": "2026-13-99"})


@pytest.mark.parametrize(
    ("text", "fmt", "message"),
    [
        ("{", "json", "not JSON: Expecting property name"),
        ("{" * 100_000, "yaml", "not YAML: nested too deeply"),
        ("[" * 100_000, "json", "not JSON: nested too deeply"),
        (f'{{"name": {"9" * 5000}}}', "json", "not JSON: Exceeds the limit"),
        ("a: b: c", "yaml", "not YAML: mapping values are not allowed here"),
        ("a: \0", "yaml", "not YAML: unacceptable character"),
        ("", "yaml", "app: expected a mapping, got None"),
    ],
)
def test_text_that_is_no_app_is_one_line_of_error(text: str, fmt: Any, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_app(text, fmt)

    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"x": {1, 2}}, "roles[0].metadata.x: cannot be written as JSON: {1, 2}"),
        ({"x": [float("nan")]}, "roles[0].metadata.x[0]: cannot be written as JSON: nan"),
        ({"x": {1: 2}}, "roles[0].metadata.x: cannot be written as JSON: {1: 2}"),
    ],
)
def test_what_json_cannot_hold_is_named(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        dump_app(AppDef("a", [Role("r", "i", metadata=metadata)]))

    assert str(caught.value) == message


def test_metadata_that_contains_itself_is_refused() -> None:
    metadata: dict[str, Any] = {}
    metadata["me"] = metadata

    with pytest.raises(SpecError, match=r"roles\[0\].metadata.me: contains itself"):
        dump_app(AppDef("a", [Role("r", "i", metadata=metadata)]))


def test_late_values_have_to_be_applied_before_writing() -> None:
    with pytest.raises(SpecError, match=r"roles\[0\].overrides: late values cannot be written"):
        app_to_dict(AppDef("a", [Role("r", "i", overrides={"image": str})]))


@pytest.mark.parametrize("name", ["app.json", "app.yaml", "app.yml", "app.txt", "app"])
def test_a_file_is_read_by_its_suffix_or_by_its_look(tmp_path: Path, name: str) -> None:
    app = AppDef("a", [Role("r", "i", entrypoint="e")])
    file = tmp_path / name
    file.write_text(dump_app(app, "yaml" if "y" in name else "json"))

    assert read_app(file) == app


def test_an_error_in_a_file_begins_with_its_path(tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    file.write_text("name: a\nroles: [{name: r, image: i, resource: {cpu: two}}]\n")

    with pytest.raises(SpecError) as caught:
        read_app(file)

    assert str(caught.value) == f"{file}: roles[0].resource.cpu: expected int, got 'two'"


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    binary = tmp_path / "app.json"
    binary.write_bytes(b"\xff\xfe")

    with pytest.raises(SpecError, match="cannot be read: 'utf-8' codec"):
        read_app(binary)
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        read_app(tmp_path)
    with pytest.raises(SpecError, match="gone: cannot be read: No such file"):
        read_app(tmp_path / "gone")
    with pytest.raises(SpecError, match="cannot be read"):
        read_app("a\0b")
