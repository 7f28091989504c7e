"""Apps of other libraries become ours, field by field."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest

from torchloom.specs import (
    NULL_RESOURCE,
    AppDef,
    BindMount,
    DeviceMount,
    Resource,
    RetryPolicy,
    Role,
    SpecError,
    Workspace,
    coerce_app,
)


class Policy(str, Enum):  # noqa: UP042
    REPLICA = "REPLICA"


@dataclass
class TheirResource:
    cpu: int
    gpu: int
    memMB: int  # noqa: N815


def their_mount(name: str, **values: Any) -> Any:
    return dataclass(type(name, (), {"__annotations__": dict.fromkeys(values, str)}))(**values)


@dataclass
class TheirRole:
    name: str
    image: str
    base_image: str | None = None
    args: list[str] = field(default_factory=list)
    retry_policy: Policy = Policy.REPLICA
    resource: TheirResource = field(default_factory=lambda: TheirResource(1, 2, 3))
    mounts: list[Any] = field(default_factory=list)
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass
class TheirApp:
    name: str
    roles: list[TheirRole]
    metadata: dict[str, str] = field(default_factory=dict)


def test_our_own_app_is_taken_as_it_is() -> None:
    app = AppDef("a", [Role("r", "i")])

    assert coerce_app(app) is app


def test_another_library_s_app_is_copied_by_the_names_of_its_fields() -> None:
    mounts = [
        their_mount("BindMount", src_path="/a", dst_path="/b"),
        their_mount("DeviceMount", src_path="/dev/a", dst_path="/dev/b", permissions="r"),
    ]
    theirs = TheirApp("a", [TheirRole("r", "i", args=["x"], mounts=mounts)], {"k": "v"})

    assert coerce_app(theirs) == AppDef(
        "a",
        [
            Role(
                "r",
                "i",
                args=["x"],
                retry_policy=RetryPolicy.REPLICA,
                resource=Resource(1, 2, 3),
                mounts=[BindMount("/a", "/b"), DeviceMount("/dev/a", "/dev/b", "r")],
            )
        ],
        {"k": "v"},
    )


def test_a_field_we_do_not_have_is_refused_only_if_it_says_something() -> None:
    theirs = TheirApp("a", [TheirRole("r", "i", base_image="old")])

    with pytest.raises(SpecError) as caught:
        coerce_app(theirs)

    assert str(caught.value) == (
        "roles[0].base_image: there is no such field here, and it is 'old'"
    )


def test_a_field_of_the_wrong_type_is_named() -> None:
    theirs = TheirApp("a", [TheirRole("r", "i", args=[1])])  # type: ignore[list-item]

    with pytest.raises(SpecError, match=r"roles\[0\].args\[0\]: expected str, got 1"):
        coerce_app(theirs)


@pytest.mark.parametrize("other", [None, "app", {"name": "a", "roles": []}, AppDef, Resource()])
def test_what_is_no_app_is_shown(other: object) -> None:
    with pytest.raises(SpecError) as caught:
        coerce_app(other)

    assert str(caught.value) == (
        f"expected an AppDef, got {type(other).__name__}: {other!r}; a component has to return one"
    )


@pytest.mark.soak  # needs an environment that has torchx
def test_torchx_s_own_app_becomes_ours() -> None:
    torchx = pytest.importorskip("torchx.specs", reason="torchx is not installed")
    role = torchx.Role(
        "r",
        "i",
        entrypoint="e",
        mounts=[torchx.BindMount("/a", "/b", True)],
        workspace=torchx.Workspace({"p": "q"}),
        overrides={"image": lambda: "late"},
    )

    app = coerce_app(torchx.AppDef("a", [role]))

    assert app == AppDef(
        "a",
        [
            Role(
                "r",
                "late",
                entrypoint="e",
                mounts=[BindMount("/a", "/b", True)],
                workspace=Workspace({"p": "q"}),
            )
        ],
    )
    assert app.roles[0].resource == NULL_RESOURCE
