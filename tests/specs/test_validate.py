"""What keeps an app from running is said before anything starts."""

from typing import Any

import pytest

from torchloom.errors import UserError
from torchloom.specs import AppDef, Role, validate_app

ALLOWED = "1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit"


def app(name: str = "app", **changes: Any) -> AppDef:
    return AppDef(name, [Role(**{"name": "r", "image": "i", "entrypoint": "e", **changes})])


@pytest.mark.parametrize(
    "good",
    [
        app(),
        app(name="A.b-c_9" + "x" * 57),
        app(min_replicas=1, num_replicas=2, max_retries=3, port_map={"a": 0, "b": 65535}),
        app(args=["; rm -rf /", "a\nb", "$(x)", "ü", "", "\udcff"], env={"A B": "=\n"}),
        app(metadata={"anything": {1, 2}}),
    ],
)
def test_an_app_that_can_run_passes(good: AppDef) -> None:
    validate_app(good)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (AppDef("a"), "roles: an app needs at least one role"),
        (
            app(name="a b"),
            f"name: 'a b' is not a name: use {ALLOWED}",
        ),
        (app(name=""), f"name: '' is not a name: use {ALLOWED}"),
        (app(name="a\n"), f"name: 'a\\n' is not a name: use {ALLOWED}"),
        (app(name=".hidden"), f"name: '.hidden' is not a name: use {ALLOWED}"),
        (app(name="x" * 10_000), f"name: '{'x' * 77}...' is not a name: use {ALLOWED}"),
        (
            AppDef("a", [Role("r/0", "i", entrypoint="e")]),
            f"roles[0].name: 'r/0' is not a name: use {ALLOWED}",
        ),
        (
            AppDef("a", [*app().roles, *app().roles]),
            "roles[1].name: a role before this one is named 'r' too",
        ),
        (
            AppDef("a", [Role("r", "i")]),
            "roles[0].entrypoint: is not set: name the program to run",
        ),
        (app(num_replicas=0), "roles[0].num_replicas: must be at least 1, is 0"),
        (
            app(min_replicas=3, num_replicas=2),
            "roles[0].min_replicas: must be 0 to num_replicas (2), is 3",
        ),
        (app(max_retries=-1), "roles[0].max_retries: must not be negative, is -1"),
        (
            app(port_map={"http": 70000}),
            "roles[0].port_map.http: is not a port: 70000 is not in 0..65535",
        ),
        (
            app(env={"A=B": ""}),
            "roles[0].env['A=B']: a variable's name must not be empty nor contain '='",
        ),
        (
            app(env={"": "x"}),
            "roles[0].env['']: a variable's name must not be empty nor contain '='",
        ),
        (
            app(env={"A\0": ""}),
            "roles[0].env['A\\x00']: contains a NUL byte, which no command line can carry",
        ),
        (
            app(env={"A": "\0"}),
            "roles[0].env.A: contains a NUL byte, which no command line can carry",
        ),
        (
            app(args=["x", "a\0b"]),
            "roles[0].args[1]: contains a NUL byte, which no command line can carry",
        ),
        (app(args=["\ud800"]), "roles[0].args[0]: cannot be written as UTF-8: '\\ud800'"),
        (
            app(args=[3]),
            "roles[0].args[0]: expected str, got 3; put it in quotes if text is meant",
        ),
        (app(num_replicas="2"), "roles[0].num_replicas: expected int, got '2'"),
        (app(num_replicas=True), "roles[0].num_replicas: expected int, got True"),
        (app(resource=None), "roles[0].resource: expected a mapping, got None"),
        (AppDef("a", [None]), "roles[0]: expected a mapping, got None"),  # type: ignore[list-item]
    ],
)
def test_what_is_wrong_is_named_by_its_field(bad: AppDef, message: str) -> None:
    with pytest.raises(UserError) as caught:
        validate_app(bad)

    assert str(caught.value) == message
