import copy
from pathlib import Path
from typing import Any

import pytest

from torchloom.errors import UserError
from torchloom.runner import Runner, get_runner
from torchloom.specs.api import (
    AppDef,
    AppDryRunInfo,
    InvalidRunConfigException,
    MalformedAppHandleException,
    Resource,
    Role,
    SpecError,
    UnknownAppException,
    UnknownSchedulerException,
    Workspace,
)

from ..schedulers.test_scheduler_api import Memory
from .test_config import project, users

SMALL = Resource(cpu=1, memMB=128)


class Engine(Memory):
    """An engine that remembers how it was made, asked and closed."""

    def __init__(self, session_name: str, **kwargs: Any) -> None:
        super().__init__()
        self.session_name = session_name
        self.made_with = kwargs
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.closed = 0

    def _pre_build_validate(self, app: AppDef, scheduler: str, cfg: Any) -> None:
        self.asked.append(("before", dict(cfg)))

    def _validate(self, app: AppDef, scheduler: str, cfg: Any) -> None:
        self.asked.append(("after", dict(cfg)))

    def close(self) -> None:
        self.closed += 1


def app(**fields: Any) -> AppDef:
    role = Role("a", "", **{"entrypoint": "echo", "resource": SMALL, **fields})
    return AppDef("app", [role], {"team": "x"})


def over(engine: Any = Engine, **kwargs: Any) -> Runner:
    return Runner("mine", {"memory": engine}, **kwargs)


def env_of(info: AppDryRunInfo[Any]) -> dict[str, str]:
    assert info.app is not None
    return dict(info.app.roles[0].env)


# Planning.


def test_a_plan_leaves_the_app_as_it_was(home: Path) -> None:
    asked = app(env={"A": "1"}, workspace=Workspace({str(home): ""}))
    before = copy.deepcopy(asked)

    info = get_runner().dryrun(asked, "local", workspace=str(home.parent), parent_run_id="p")

    assert asked == before
    assert info.app is not asked


def test_an_engine_works_under_any_name() -> None:
    runner = Runner("mine", {"local_dir": Engine})

    info = runner.dryrun(app(), "local_dir", {"queue": "q"})

    assert runner.schedule(info) == "local_dir://mine/id-1"
    assert (info.app is not None, info.cfg["queue"], info._scheduler) == (True, "q", "local_dir")
    assert info.app is not None
    assert info.app.roles[0].env["TORCHX_JOB_ID"] == "local_dir://mine/${app_id}"


def test_blanks_in_names_become_dashes() -> None:
    asked = AppDef("my  app", [Role("my train", "", entrypoint="echo", resource=SMALL)])

    info = over().dryrun(asked, "memory", {"queue": "q"})

    assert info.app is not None
    assert (info.app.name, info.app.roles[0].name) == ("my-app", "my-train")
    assert (asked.name, asked.roles[0].name) == ("my  app", "my train")


def test_roles_are_told_who_they_are(home: Path) -> None:
    env = env_of(over().dryrun(app(), "memory", {"queue": "q"}, parent_run_id="parent"))

    assert env == {
        "TORCHX_JOB_ID": "memory://mine/${app_id}",
        "TORCHX_PARENT_RUN_ID": "parent",
    }


def test_an_app_of_an_earlier_plan_is_told_anew_who_it_is(home: Path) -> None:
    first = get_runner().dryrun(app(), "local")
    assert first.app is not None

    second = over().dryrun(first.app, "memory", {"queue": "q"})

    assert env_of(second)["TORCHX_JOB_ID"] == "memory://mine/${app_id}"


def test_a_run_inside_a_run_has_it_as_parent_unless_told_otherwise(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHX_PARENT_RUN_ID", "outer")

    plans = [get_runner().dryrun(app(), "local", parent_run_id=given) for given in (None, "given")]

    assert [env_of(plan)["TORCHX_PARENT_RUN_ID"] for plan in plans] == ["outer", "given"]


def test_trackers_of_the_config_files_are_told_to_the_roles(home: Path) -> None:
    project(home, "[torchx:tracker]\nfs = module:create\nml = other:create\n")
    users(home, "[tracker:fs]\nconfig = /fs.ini\n")

    env = env_of(get_runner().dryrun(app(), "local"))

    assert {key: env[key] for key in env if "TRACKER" in key} == {
        "TORCHX_TRACKERS": "fs,ml",
        "TORCHX_TRACKER_FS_CONFIG": "/fs.ini",
    }


def test_trackers_of_the_environment_beat_those_of_the_files(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(home, "[torchx:tracker]\nfs = m:c\n[tracker:ml]\nconfig = /file.ini\n")
    monkeypatch.setenv("TORCHX_TRACKERS", "ml")
    monkeypatch.setenv("TORCHX_TRACKER_ML_CONFIG", "/env.ini")

    env = env_of(get_runner().dryrun(app(), "local"))

    assert {key: env[key] for key in env if "TRACKER" in key} == {
        "TORCHX_TRACKERS": "ml",
        "TORCHX_TRACKER_ML_CONFIG": "/env.ini",
    }


def test_options_are_those_given_else_the_files_else_the_defaults(home: Path) -> None:
    project(home, "[local]\ngrace = 3\nlog_dir = /file\n")

    info = get_runner().dryrun(app(), "local", {"grace": 4})

    assert dict(info.cfg) == {
        "grace": 4,
        "orphan_limit": 60,
        "idle_timeout": 0,
        "policy": None,
        "checkpoints": None,
        "resume": False,
        "resume_from": None,
        "resume_until": None,
        "id": None,
        "cwd": None,
        "hosts": None,
        "devices": None,
        "log_dir": "/file",
        "prepend_cwd": False,
        "auto_set_cuda_visible_devices": False,
    }


def test_an_engine_checks_an_app_with_all_options_filled_in(home: Path) -> None:
    project(home, "[memory]\nqueue = file\n")
    runner = over()

    info = runner.dryrun(app(), "memory")

    options = {"queue": "file", "priority": 3}
    engine = runner.scheduler("memory")
    assert isinstance(engine, Engine)
    assert engine.asked == [("before", options), ("after", options)]
    assert info.request == "app@file/3"


def test_a_missing_option_is_named(home: Path) -> None:
    with pytest.raises(InvalidRunConfigException, match="'queue' is required"):
        over().dryrun(app(), "memory")


def test_a_workspace_given_by_argument_is_the_first_roles(home: Path) -> None:
    asked = app(workspace=Workspace({"/role's": ""}))
    asked.roles.append(Role("b", "", entrypoint="echo", resource=SMALL))

    plans = [
        over().dryrun(asked, "memory", {"queue": "q"}, workspace=given)
        for given in (None, "", "/arg", Workspace({"/ws": "x"}))
    ]

    found = [[role.workspace for role in plan.app.roles] for plan in plans if plan.app]
    assert found == [
        [Workspace({"/role's": ""}), None],
        [Workspace({"/role's": ""}), None],
        [Workspace({"/arg": ""}), None],
        [Workspace({"/ws": "x"}), None],
    ]


def test_late_values_are_asked_for_when_the_plan_is_made(home: Path) -> None:
    async def image() -> str:
        return "late:1"

    asked = app(overrides={"image": image(), "args": lambda: ["x"]})

    info = get_runner().dryrun(asked, "local")

    assert info.app is not None
    assert (info.app.roles[0].image, info.app.roles[0].args) == ("late:1", ["x"])


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (AppDef("app"), "roles: an app needs at least one role"),
        (AppDef("app", 5), "roles: expected"),  # type: ignore[arg-type]
        (AppDef("app", ["a"]), r"roles\[0\]"),  # type: ignore[list-item]
        (app(entrypoint=""), r"roles\[0\].entrypoint: is not set"),
        (app(num_replicas=0), r"roles\[0\].num_replicas: must be at least 1"),
        (app(env={"A": "x\0y"}), r"roles\[0\].env.A: contains a NUL byte"),
        (AppDef("../up", app().roles), "name: '../up' is not a name"),
    ],
)
def test_an_app_that_cannot_run_is_refused_before_anything_is_made(
    home: Path, asked: AppDef, problem: str
) -> None:
    with pytest.raises(SpecError, match=problem):
        get_runner().run(asked, "local")

    assert list(home.iterdir()) == []


def test_run_with_dryrun_plans_and_submits_nothing(home: Path) -> None:
    runner = over()

    info = runner.run(app(), "memory", {"queue": "q"}, dryrun=True)

    assert (info.request, runner.list("memory")) == ("app@q/3", [])


def test_a_changed_request_is_what_is_scheduled(home: Path) -> None:
    runner = over()
    info = runner.dryrun(app(), "memory", {"queue": "q"})
    info.request = "something else"

    assert runner.schedule(info) == "memory://mine/id-1"
    engine = runner.scheduler("memory")
    assert isinstance(engine, Engine)
    assert engine.apps == {"id-1": "something else"}


# Components.


def test_a_component_takes_words_or_a_mapping(home: Path) -> None:
    runner = get_runner()

    words = runner.dryrun_component("utils.echo", ["--msg", "hi"], "local")
    mapping = runner.dryrun_component("utils.echo", {"msg": "hi"}, "local")

    assert words.app == mapping.app
    assert words.app is not None
    assert words.app.roles[0].args == ["hi"]


@pytest.mark.parametrize(
    ("words", "defaults", "said"),
    [
        ([], None, "file"),
        (["--msg", "word"], None, "word"),
        ([], {"utils.echo": {"msg": "program"}}, "program"),
        ([], {}, "hello world"),
        ({"msg": "mapping"}, None, "mapping"),
    ],
)
def test_words_come_before_defaults_of_the_program_or_else_of_the_files(
    home: Path, words: Any, defaults: Any, said: str
) -> None:
    project(home, "[component:utils.echo]\nmsg = file\n")

    info = get_runner(component_defaults=defaults).dryrun_component("utils.echo", words, "local")

    assert info.app is not None
    assert info.app.roles[0].args == [said]


def test_an_unknown_component_is_named_with_the_nearest(home: Path) -> None:
    with pytest.raises(UserError, match=r"utils\.echo"):
        get_runner().run_component("utils.ecko", [], "local")


# Engines.


def test_an_unknown_engine_is_named_with_those_there_are(home: Path) -> None:
    with pytest.raises(UnknownSchedulerException, match=r"no scheduler 'memry'.*memory"):
        over().run(app(), "memry")
    with pytest.raises(UnknownSchedulerException, match="no scheduler 'slurm'"):
        over().status("slurm://torchx/1")


def test_a_runner_given_no_engines_has_none() -> None:
    runner = Runner("mine", {})

    assert runner.scheduler_backends() == []
    with pytest.raises(UnknownSchedulerException):
        runner.scheduler("local")


def test_an_engine_is_made_once_with_the_session_and_the_parameters() -> None:
    runner = over(scheduler_params={"region": "moon"})

    engine = runner.scheduler("memory")

    assert isinstance(engine, Engine)
    assert runner.scheduler("memory") is engine
    assert (engine.session_name, engine.made_with) == ("mine", {"region": "moon"})


def test_a_runner_closes_the_engines_it_made() -> None:
    with over() as runner:
        engine = runner.scheduler("memory")

    assert isinstance(engine, Engine)
    assert engine.closed == 1
    runner.close()
    assert engine.closed == 1


def test_the_usual_runner_has_torchxs_session_and_every_engine() -> None:
    runner = get_runner()

    assert runner.name() == "torchx"
    assert {"local", "local_cwd", "lsf", "slurm"} <= set(runner.scheduler_backends())


def test_options_are_read_from_text() -> None:
    runner = get_runner()

    assert runner.cfg_from_str("local", "grace=3,log_dir=/x", "prepend_cwd=yes") == {
        "grace": 3,
        "log_dir": "/x",
        "prepend_cwd": True,
    }
    with pytest.raises(InvalidRunConfigException, match="no option 'gracee'; did you mean"):
        runner.cfg_from_str("local", "gracee=3")


# Apps that are not there.


def test_what_is_said_of_an_app_that_nobody_knows(home: Path) -> None:
    runner, handle = get_runner(), "local://torchx/nobody"

    assert (runner.status(handle), runner.describe(handle), runner.wait(handle)) == (None,) * 3
    runner.cancel(handle)
    runner.stop(handle)
    runner.delete(handle)
    with pytest.raises(UnknownAppException, match="no app 'local://torchx/nobody'"):
        runner.log_lines(handle, "a")


@pytest.mark.parametrize("handle", ["", "x", "local:/x/y", "local://noid", "://s/x"])
def test_what_is_no_handle_is_refused(handle: str) -> None:
    with pytest.raises(MalformedAppHandleException):
        get_runner().status(handle)


@pytest.mark.parametrize("app_id", ["..", "../../etc", ".new-x", "a\0b", "x" * 10_000])
def test_a_hostile_id_names_nothing(home: Path, app_id: str) -> None:
    assert get_runner().status(f"local://torchx/{app_id}") is None
