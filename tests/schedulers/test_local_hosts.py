"""An app goes to the hosts, and sees the devices, that its run options name."""

from pathlib import Path
from typing import Any

import pytest

from torchloom.errors import UserError
from torchloom.launch.records.request import LaunchRequest
from torchloom.runner.api import get_runner
from torchloom.specs.api import AppDef, Role

APP = AppDef("app", [Role("a", "", entrypoint="loom", args=["launch", "-n", "3", "train.py"])])


def request(app: AppDef = APP, **cfg: Any) -> LaunchRequest:
    launch: LaunchRequest = get_runner().dryrun(app, "local", cfg).request.launch
    return launch


def masks(launch: LaunchRequest) -> list[str | None]:
    return [each.env.get("CUDA_VISIBLE_DEVICES") for each in launch.roles[0].replicas]


def test_a_run_may_be_given_its_id_and_its_folder(home: Path) -> None:
    launch = request(id="job-7", cwd="/tmp")

    assert (launch.app_id, launch.cwd) == ("job-7", "/tmp")
    assert launch.log_dir == str(home / "runs/job-7/logs")


@pytest.mark.parametrize("name", ["../x", ".new-x", "a/b", "a~1", "x" * 200])
def test_an_id_that_could_leave_the_folder_of_runs_is_refused(home: Path, name: str) -> None:
    with pytest.raises(UserError, match="is not a run id"):
        request(id=name)


def test_ranks_go_to_the_hosts_that_are_named_with_their_devices(home: Path) -> None:
    launch = request(hosts=["n1:2", "n2:1"], devices=["GPU-1,GPU-2", ""])

    (role,) = launch.roles
    assert launch.nodes == ("n1", "n2")
    assert launch.carrier is not None
    assert launch.carrier.launcher == "ssh"
    assert [role.ranks_of(0), role.ranks_of(1)] == [2, 1]
    assert masks(launch) == ["GPU-1,GPU-2", ""]


def test_this_host_alone_needs_nobody_to_carry_an_agent_there(home: Path) -> None:
    launch = request(hosts=["localhost:2"], devices=["0"])

    assert (launch.nodes, launch.carrier) == ((), None)
    assert launch.roles[0].total == 2
    assert masks(launch) == ["0"]


@pytest.mark.parametrize(
    ("cfg", "why"),
    [
        ({"hosts": ["n1"]}, "'n1' is not HOST:RANKS"),
        ({"hosts": ["n1:0"]}, "'n1:0' is not HOST:RANKS"),
        ({"hosts": ["localhost:1"], "devices": ["0", "1"]}, "2 lists for 1 replicas"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused(home: Path, cfg: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        request(**cfg)


def test_an_app_of_several_roles_is_put_on_one_host_only(home: Path) -> None:
    app = AppDef("app", [Role("a", "", entrypoint="e"), Role("b", "", entrypoint="e")])

    with pytest.raises(UserError, match="an app of several roles runs on one host"):
        request(app, hosts=["n1:1"])
    here = request(app, hosts=["localhost:3"], devices=["0,2"])
    assert [role.ranks for role in here.roles] == [3, 1]
    masks = [
        replica.env.get("CUDA_VISIBLE_DEVICES") for role in here.roles for replica in role.replicas
    ]
    assert masks == ["0,2", ""]
