import os
from pathlib import Path
from typing import Any

import pytest

from torchloom.errors import UserError
from torchloom.schedulers.local_scheduler import create_scheduler
from torchloom.specs.api import AppDef, InvalidRunConfigException, Role, Workspace

APP = AppDef("app", [Role("a", "", entrypoint="echo", args=["hi"])])


def everything_below(path: Path) -> list[str]:
    return sorted(os.fspath(found) for found in path.rglob("*"))


def dryrun(**cfg: Any) -> Any:
    return create_scheduler("torchx").submit_dryrun(APP, cfg)


def test_a_dry_run_touches_nothing(home: Path, tmp_path: Path) -> None:
    before = everything_below(tmp_path)

    dryrun(log_dir="logs")

    assert everything_below(tmp_path) == before


def test_a_dry_run_prints_what_would_run(home: Path, tmp_path: Path) -> None:
    info = dryrun()
    app_id = info.request.launch.app_id

    assert str(info).splitlines() == [
        f"app: {app_id}",
        f"cwd: {tmp_path}/project",
        f"logs: {home}/runs/{app_id}/logs",
        "role a: 1 replica",
        "  [0] echo hi",
    ]


def test_two_dry_runs_are_two_apps(home: Path) -> None:
    assert dryrun().request.launch.app_id != dryrun().request.launch.app_id


def test_a_log_folder_of_the_users_has_a_place_for_every_app(home: Path, tmp_path: Path) -> None:
    info = dryrun(log_dir="logs")

    app_id = info.request.launch.app_id
    assert info.request.launch.log_dir == f"{tmp_path}/project/logs/torchx/{app_id}"


def test_the_grace_of_a_stop_is_an_option(home: Path) -> None:
    assert dryrun(grace=3).request.launch.grace == 3.0
    assert dryrun().request.launch.grace == 10.0


def test_a_grace_that_is_none_is_refused(home: Path) -> None:
    with pytest.raises(UserError, match="grace: expected seconds from 0, got -1"):
        dryrun(grace=-1)


def test_an_option_of_the_wrong_type_is_refused(home: Path) -> None:
    with pytest.raises(InvalidRunConfigException, match="'prepend_cwd' must be bool"):
        dryrun(prepend_cwd="yes")


def test_torchxs_options_are_there_with_its_defaults() -> None:
    options = {name: opt.default for name, opt in create_scheduler("s").run_opts()}

    assert options == {
        "log_dir": None,
        "prepend_cwd": False,
        "auto_set_cuda_visible_devices": False,
        "orphan_limit": 60,
        "idle_timeout": 0,
        "policy": None,
        "grace": 10,
        "checkpoints": None,
        "resume": False,
        "resume_from": None,
        "resume_until": None,
        "id": None,
        "cwd": None,
        "hosts": None,
        "devices": None,
    }


def test_a_workspace_that_does_not_exist_is_refused_before_anything_is_made(
    home: Path, tmp_path: Path
) -> None:
    app = AppDef("app", [Role("a", "", entrypoint="e", workspace=Workspace({"/no/where": ""}))])

    with pytest.raises(UserError, match="'/no/where' does not exist"):
        create_scheduler("torchx")._validate(app, "local", {})


def test_a_role_need_not_say_what_it_needs() -> None:
    create_scheduler("torchx")._validate(APP, "local", {})
