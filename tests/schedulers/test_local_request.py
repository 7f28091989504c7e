import copy
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchloom.launch.records.request import LaunchRequest, ReplicaRequest, RoleRequest
from torchloom.launch.shim import FOLDER
from torchloom.schedulers import local_request
from torchloom.specs.api import AppDef, BindMount, Resource, RetryPolicy, Role, Workspace

EMPTY = LaunchRequest("app-1", "app", "torchx", "/work", "/home/runs/app-1/logs", ())
BESIDE_US = os.path.dirname(sys.executable)
OURS = {"LOOM_PYTHON": sys.executable}
SHELL = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "4,5,6,7"}


def build(*roles: Role, env: dict[str, str] | None = None, **cfg: Any) -> LaunchRequest:
    shell = SHELL if env is None else env
    return local_request.build(AppDef("app", list(roles)), cfg, EMPTY, shell, "/home/runs/app-1")


def role(name: str = "a", **fields: Any) -> Role:
    return Role(name, "", **{"entrypoint": "echo", **fields})


def masks(request: LaunchRequest) -> list[str | None]:
    replicas = (replica for each in request.roles for replica in each.replicas)
    return [replica.env.get("CUDA_VISIBLE_DEVICES") for replica in replicas]


def test_a_role_becomes_what_the_agent_is_asked() -> None:
    asked = role(
        args=["hi there"],
        env={"A": "1"},
        num_replicas=2,
        max_retries=3,
        retry_policy=RetryPolicy.ROLE,
        min_replicas=1,
        port_map={"web": 80},
    )
    replica = ReplicaRequest(
        ("echo", "hi there"),
        {"A": "1", "PATH": f"{FOLDER}:/usr/bin:/bin:/work:{BESIDE_US}", **OURS},
        {"web": 80},
    )

    assert build(asked) == replace(
        EMPTY,
        roles=(
            RoleRequest(
                "a",
                (replica, replica),
                max_retries=3,
                policy=RetryPolicy.ROLE,
                min_replicas=1,
            ),
        ),
    )


def test_macros_are_filled_in_for_every_replica() -> None:
    asked = role(
        args=["${app_id}", "${replica_id}", "${img_root}/x", "${rank0_env}", "$$HOME"],
        env={"WHO": "${app_id}/${replica_id}"},
        num_replicas=2,
    )

    found = [(replica.argv, replica.env["WHO"]) for replica in build(asked).roles[0].replicas]

    assert found == [
        (("echo", "app-1", "0", "/work/x", "TORCHX_RANK0_HOST", "$HOME"), "app-1/0"),
        (("echo", "app-1", "1", "/work/x", "TORCHX_RANK0_HOST", "$HOME"), "app-1/1"),
    ]


@pytest.mark.parametrize(
    ("own", "prepend", "path"),
    [
        (None, False, "/usr/bin:/bin:/work"),
        (None, True, "/work:/usr/bin:/bin"),
        ("/own", False, "/own:/usr/bin:/bin:/work"),
        ("/own", True, "/work:/own:/usr/bin:/bin"),
        ("${img_root}/bin", False, "/work/bin:/usr/bin:/bin:/work"),
    ],
)
def test_commands_are_looked_for_in_the_roles_folders_the_shells_this_one_and_ours(
    own: str | None, prepend: bool, path: str
) -> None:
    env = {} if own is None else {"PATH": own}

    found = build(role(env=env), prepend_cwd=prepend).roles[0].replicas[0].env["PATH"]

    assert found == f"{FOLDER}:{path}:{BESIDE_US}"


# Groups of ranks.


def test_a_launch_command_becomes_a_group_of_ranks() -> None:
    asked = role(
        entrypoint="loom",
        args=["launch", "-n", "4", "--nnodes", "2", "--", "python", "t.py", "${replica_id}"],
        num_replicas=2,
    )

    found = build(asked).roles[0]

    assert (found.ranks, found.distributed) == (4, True)
    assert [replica.argv for replica in found.replicas] == [
        ("python", "t.py", "0"),
        ("python", "t.py", "1"),
    ]


def test_auto_is_a_rank_for_every_device() -> None:
    found = build(role(entrypoint="loom", args=["launch", "-n", "auto", "--", "a"])).roles[0]

    assert (found.ranks, found.distributed) == (4, True)


def test_auto_without_devices_is_the_plain_command() -> None:
    asked = role(entrypoint="loom", args=["launch", "-n", "auto", "--", "a"])

    found = build(asked, env={"PATH": "/bin", "CUDA_VISIBLE_DEVICES": ""}).roles[0]

    assert (found.ranks, found.distributed) == (1, False)


def test_auto_without_devices_on_two_nodes_is_still_one_group() -> None:
    asked = role(entrypoint="loom", args=["launch", "-n", "auto", "--", "a"], num_replicas=2)

    found = build(asked, env={"PATH": "/bin", "CUDA_VISIBLE_DEVICES": ""}).roles[0]

    assert (found.ranks, found.distributed) == (1, True)


def test_one_rank_that_was_asked_for_by_number_is_a_group_of_one() -> None:
    found = build(role(entrypoint="loom", args=["launch", "-n", "1", "--", "a"])).roles[0]

    assert (found.ranks, found.distributed) == (1, True)


# Devices.


def test_each_replica_gets_its_own_devices_of_those_the_shell_may_use() -> None:
    roles = (
        role("a", num_replicas=2, resource=Resource(cpu=1, gpu=1, memMB=1)),
        role("b", resource=Resource(cpu=1, gpu=2, memMB=1)),
    )

    assert masks(build(*roles, auto_set_cuda_visible_devices=True)) == ["4", "5", "6,7"]


def test_devices_are_not_dealt_unless_asked_for() -> None:
    asked = role(num_replicas=2, resource=Resource(cpu=1, gpu=1, memMB=1))

    assert masks(build(asked)) == [None, None]


def test_too_few_devices_are_not_dealt_and_a_note_says_so() -> None:
    asked = role(num_replicas=3, resource=Resource(cpu=1, gpu=2, memMB=1))

    found = build(asked, auto_set_cuda_visible_devices=True)

    assert masks(found) == [None, None, None]
    assert found.notes == ("6 devices wanted, 4 here: all replicas see all of them",)


def test_a_role_that_asks_for_no_devices_keeps_the_shells_mask() -> None:
    roles = (
        role("reader"),
        role("trainer", resource=Resource(cpu=1, gpu=2, memMB=1)),
        role("writer", resource=Resource(cpu=1, gpu=0, memMB=1), env={"CUDA_VISIBLE_DEVICES": "9"}),
    )

    assert masks(build(*roles, auto_set_cuda_visible_devices=True)) == [None, "4,5", "9"]


# What else a role may have.


def test_a_workspace_is_where_the_role_runs_and_its_image_root(tmp_path: Path) -> None:
    asked = role(args=["${img_root}"], workspace=Workspace({str(tmp_path): ""}))
    place = "/home/runs/app-1/workspace/a"

    found = build(asked).roles[0]

    assert (found.cwd, found.workspace) == (place, {str(tmp_path): ""})
    assert found.replicas[0] == ReplicaRequest(
        ("echo", place), {"PATH": f"{FOLDER}:/usr/bin:/bin:{place}:{BESIDE_US}", **OURS}, {}
    )


def test_mounts_are_not_honoured_and_a_note_says_so() -> None:
    found = build(role(mounts=[BindMount("/a", "/b")]))

    assert found.notes == ("role a: mounts need containers; processes here see the real paths",)


def test_the_app_stays_as_it_was() -> None:
    asked = role(env={"A": "${app_id}"}, num_replicas=2)
    before = copy.deepcopy(asked)

    build(asked, auto_set_cuda_visible_devices=True, prepend_cwd=True)

    assert asked == before
