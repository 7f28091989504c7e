import json
from dataclasses import replace

import pytest

from torchloom.launch.records.request import LaunchRequest, ReplicaRequest, RoleRequest
from torchloom.rules.replicas import (
    RoleRule,
)
from torchloom.specs.api import RetryPolicy
from torchloom.specs.states import ReplicaKey

TRAINER = RoleRequest(
    name="trainer",
    replicas=(
        ReplicaRequest(("python", "train me.py"), {"A": "1 2", "PATH": "/bin"}, {"web": 0}),
        ReplicaRequest(("python", "train me.py"), {"A": "1 2", "PATH": "/bin"}, {"web": 80}),
    ),
    ranks=4,
    distributed=True,
    max_retries=2,
    policy=RetryPolicy.ROLE,
    min_replicas=1,
    workspace={"/src/p": ""},
    cwd="/runs/x/workspace/trainer",
)
READER = RoleRequest(name="reader", replicas=(ReplicaRequest(("cat",), {}),))
REQUEST = LaunchRequest(
    app_id="app-1",
    name="app",
    session="torchx",
    cwd="/work",
    log_dir="/logs",
    roles=(TRAINER, READER),
    grace=2.5,
    notes=("mounts are not for processes",),
)


def test_a_request_survives_a_trip_through_json() -> None:
    told = json.loads(json.dumps(REQUEST.to_dict()))

    assert LaunchRequest.from_dict(told) == REQUEST


def test_roles_and_replicas_are_found_by_name_and_index() -> None:
    assert REQUEST.role("reader") is READER
    assert REQUEST.replica(ReplicaKey("trainer", 1)) is TRAINER.replicas[1]


def test_a_role_knows_its_rule_of_recovery() -> None:
    assert TRAINER.rule() == RoleRule(
        name="trainer",
        replicas=2,
        ranks=4,
        max_retries=2,
        policy=RetryPolicy.ROLE,
        min_replicas=1,
    )


@pytest.mark.parametrize(
    ("policy", "has_plane", "roles", "is_live"),
    [
        ({}, True, (TRAINER,), True),
        ({"on_loss": "fail"}, True, (TRAINER,), True),
        ({"recovery": "live"}, False, (TRAINER,), True),
        ({}, False, (TRAINER,), False),
        ({"recovery": "restart"}, True, (TRAINER,), False),
        ({"recovery": "fail"}, True, (TRAINER,), False),
        ({}, True, (TRAINER, READER), False),
        ({"recovery": "live"}, True, (READER,), False),
        ({}, True, (replace(TRAINER, ranks=1, replicas=TRAINER.replicas[:1]),), False),
        ({}, True, (replace(TRAINER, min_group=1),), False),
    ],
)
def test_ranks_of_one_group_are_replaced_one_by_one_where_a_plane_is_and_nobody_objects(
    policy: dict[str, str], has_plane: bool, roles: tuple[RoleRequest, ...], is_live: bool
) -> None:
    request = replace(REQUEST, policy=policy, has_plane=has_plane, roles=roles)

    assert request.is_live is is_live


def test_a_printed_request_is_the_dry_run() -> None:
    assert str(REQUEST).splitlines() == [
        "app: app-1",
        "cwd: /work",
        "logs: /logs",
        "role trainer: 2 replicas of 4 ranks, up to 2 retries (ROLE)",
        "  runs in a copy of /src/p at /runs/x/workspace/trainer",
        "  [0] python 'train me.py'",
        "      A='1 2'",
        "      port web: any free",
        "  [1] python 'train me.py'",
        "      A='1 2'",
        "      port web: 80",
        "role reader: 1 replica",
        "  [0] cat",
        "note: mounts are not for processes",
    ]
