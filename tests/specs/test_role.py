"""Role and AppDef are plain values."""

import asyncio
import copy
from dataclasses import dataclass, field
from typing import Any

import pytest

from torchloom.errors import UserError
from torchloom.specs import (
    MISSING,
    NULL_RESOURCE,
    AppDef,
    AppDryRunInfo,
    Metadata,
    Resource,
    RetryPolicy,
    Role,
    SpecError,
    macros,
    resolved,
)


def test_the_lines_of_the_seed_run() -> None:
    @dataclass
    class Sketch:
        metadata: Metadata = field(default_factory=Metadata)

    role = Role(
        "worker", "pytorch:latest", entrypoint="train.py", resource=Resource(cpu=1, memMB=128)
    )
    app = AppDef(name="my_app", roles=[role])

    assert Sketch().metadata == app.metadata == {}
    assert (role.min_replicas, role.num_replicas, role.retry_policy) == (
        None,
        1,
        RetryPolicy.APPLICATION,
    )


def test_a_role_that_says_little_has_torchx_defaults() -> None:
    role = Role("a", "b")

    assert (role.entrypoint, role.args, role.env, role.max_retries) == (MISSING, [], {}, 0)
    assert role.resource is NULL_RESOURCE


def test_roles_are_found_by_name_only() -> None:
    trainer, reader = Role("trainer", ""), Role("reader", "")
    app = AppDef("app", [trainer, reader])

    assert app["reader"] is app.get_role("reader") is reader
    assert ("trainer" in app, "nobody" in app, trainer in app) == (True, False, False)
    with pytest.raises(TypeError, match="not iterable"):
        list(app)  # type: ignore[call-overload]


def test_an_unknown_role_is_a_key_error_in_words() -> None:
    app = AppDef("app", [Role("trainer", "")])

    with pytest.raises(KeyError) as caught:
        app.get_role("trainr")

    assert isinstance(caught.value, UserError)
    assert str(caught.value) == (
        "no role 'trainr'; did you mean 'trainer'?; the app's roles: trainer"
    )


def test_the_hook_of_a_role_may_change_the_request() -> None:
    class Louder(Role):
        def pre_proc(self, scheduler: str, dryrun_info: AppDryRunInfo[Any]) -> AppDryRunInfo[Any]:
            dryrun_info.request = f"{scheduler}: {dryrun_info.request}!"
            return dryrun_info

    plan = AppDryRunInfo("run", str)

    assert Role("a", "").pre_proc("local", plan) is plan
    assert repr(Louder("a", "").pre_proc("local", plan)) == "local: run!"


def test_the_options_of_a_dry_run_are_read_only() -> None:
    plan = AppDryRunInfo("run", str)
    plan.cfg = {"queue": "a"}

    with pytest.raises(TypeError):
        plan.cfg["queue"] = "b"  # type: ignore[index]

    assert (dict(plan.cfg), plan.app, plan._scheduler) == ({"queue": "a"}, None, None)


def test_late_values_are_made_once_and_only_when_asked() -> None:
    calls: list[str] = []

    def image() -> str:
        calls.append("image")
        return "late:1"

    async def entrypoint() -> str:
        calls.append("entrypoint")
        return "main.py"

    role = Role("a", "early", overrides={"image": image, "entrypoint": entrypoint, "args": ["x"]})
    before = (role.image, list(calls))

    plain = resolved(role)

    assert before == ("early", [])
    assert plain == Role("a", "late:1", entrypoint="main.py", args=["x"])
    assert (plain.image, plain.image, calls) == ("late:1", "late:1", ["image", "entrypoint"])


def test_late_values_are_run_inside_a_running_loop_too() -> None:
    async def image() -> str:
        return "late"

    async def main() -> Role:
        return resolved(Role("a", "", overrides={"image": image()}))

    assert asyncio.run(main()) == Role("a", "late")


def test_a_late_value_of_no_field_is_refused() -> None:
    with pytest.raises(SpecError, match=r"overrides\.imge: unknown field; did you mean 'image'"):
        resolved(Role("a", "", overrides={"imge": "x"}))


def test_macros_are_replaced_in_a_deep_copy() -> None:
    role = Role(
        "a",
        "${img_root}",
        args=[macros.app_id],
        env={"R": macros.replica_id},
        metadata={"k": [[macros.app_id], {"h": macros.rank0_env}, 3]},
    )
    untouched = copy.deepcopy(role)

    filled = macros.Values("/img", "app-1", "2", "HOST").apply(role)

    assert role == untouched
    assert filled == Role(
        "a",
        "${img_root}",
        args=["app-1"],
        env={"R": "2"},
        metadata={"k": [["app-1"], {"h": "HOST"}, 3]},
    )


def test_macros_leave_late_values_alone() -> None:
    async def image() -> str:
        return "late"

    role = Role("a", "", overrides={"image": image()})

    filled = macros.Values("", "", "", "").apply(role)

    assert filled.overrides == role.overrides
    assert resolved(filled).image == "late"
