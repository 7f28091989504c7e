"""What Slurm would be sent: built without Slurm, from the app and the options alone."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchloom.errors import LoomError, MissingExtra, UserError
from torchloom.runner.api import get_runner
from torchloom.schedulers.slurm_scheduler import create_scheduler
from torchloom.specs.api import AppDef, Resource, RetryPolicy, Workspace, app_to_dict

from .planned import APP, HOSTILE, directives_of, options_of, role


def plan(app: AppDef = APP, **cfg: Any) -> Any:
    options = {"job_dir": "/shared/jobs/it", **options_of(cfg)}
    return create_scheduler("torchx").submit_dryrun(app, options)


def directives(info: Any) -> list[str]:
    return directives_of(info, "#SBATCH")


def test_a_plan_needs_no_slurm_and_touches_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    before = sorted(map(str, tmp_path.rglob("*")))

    info = create_scheduler("torchx").submit_dryrun(APP, {})

    assert str(info).startswith("note: ")
    assert f"submit: sbatch --parsable {home}/jobs/app-" in str(info)
    assert str(info).endswith(info.request.script.rstrip("\n"))
    assert sorted(map(str, tmp_path.rglob("*"))) == before


def test_where_slurm_is_not_installed_run_says_where_it_must_be_run(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    scheduler = create_scheduler("torchx")

    with pytest.raises(LoomError, match="no sbatch on PATH; run this on a login node"):
        scheduler.schedule(scheduler.submit_dryrun(APP, {}))
    assert list(home.iterdir()) == []


def test_checkpoints_in_s3_are_refused_where_the_client_is_not_installed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setenv("LOOM_CHECKPOINTS", "s3://bucket/runs")

    with pytest.raises(MissingExtra, match=r"s3://bucket needs obstore.*'torchloom\[s3\]'"):
        plan()
    assert plan(checkpoints="/shared") is not None
    assert plan(python="/opt/python") is not None  # another interpreter: it may have the client


def test_torchxs_options_are_there_with_its_defaults() -> None:
    options = {name: opt.default for name, opt in create_scheduler("s").run_opts()}

    torchx = ("account", "partition", "time", "comment", "constraint", "mail-user", "mail-type")
    assert {name: options[name] for name in (*torchx, "job_dir", "qos")} == dict.fromkeys(
        (*torchx, "job_dir", "qos")
    )


VALUES = {str: "x1", int: 7, bool: True, list[str]: ["true"]}


@pytest.mark.parametrize("name", [name for name, _ in create_scheduler("s").run_opts()])
def test_every_option_changes_the_plan(home: Path, name: str) -> None:
    option = dict(create_scheduler("s").run_opts())[name]
    value = {"policy": "shrink", "sbatch.*": "1"}.get(name, VALUES[option.opt_type])
    app = AppDef("app", [role(resource=Resource(2, 1, 1024))])
    fixed = {} if name in ("job_dir", "id") else {"job_dir": "/shared/it", "id": "it"}

    def seen(**more: Any) -> tuple[str, object]:
        request = create_scheduler("s").submit_dryrun(app, {**fixed, **more}).request
        return request.script.replace(request.parcel.run_id, "ID"), dict(request.parcel.cfg)

    one, other = seen(), seen(**{name.replace(".*", ".nice"): value})

    if name == "id":  # it names the folder
        assert "/x1/" in create_scheduler("s").submit_dryrun(app, {"id": "x1"}).request.script
    else:
        assert one != other


def test_the_script_asks_for_what_the_roles_need(home: Path) -> None:
    app = AppDef("app", [role(num_replicas=3, resource=Resource(8, 4, 2048), max_retries=1)])

    assert directives(plan(app, partition="gpu", sbatch__nice="5", sbatch__contiguous="true")) == [
        "--job-name=app",
        "--output=/shared/jobs/it/out.log",
        "--open-mode=append",
        "--export=NIL",
        "--partition=gpu",
        "--signal=B:USR1@120",
        "--requeue",
        "--nodes=3",
        "--ntasks-per-node=1",
        "--cpus-per-task=8",
        "--gpus-per-node=4",
        "--mem=2048M",
        "--nice=5",
        "--contiguous",
    ]


def test_a_role_that_says_nothing_gets_the_clusters_defaults(home: Path) -> None:
    assert directives(plan(warn=0)) == [
        "--job-name=app",
        "--output=/shared/jobs/it/out.log",
        "--open-mode=append",
        "--export=NIL",
        "--no-requeue",
        "--nodes=1",
        "--ntasks-per-node=1",
    ]


def test_roles_that_need_the_same_are_one_job_and_others_parts_of_one(home: Path) -> None:
    small, big = Resource(2, 0, 512), Resource(8, 2, 4096)
    alike = AppDef("app", [role("a", resource=small), role("b", num_replicas=2, resource=small)])
    unlike = AppDef("app", [role("a", resource=small), role("b", num_replicas=2, resource=big)])

    assert "hetjob" not in plan(alike).request.script
    assert "--nodes=3" in directives(plan(alike))
    parts = plan(unlike, partition="p").request.script.split("#SBATCH hetjob\n")
    assert [part.count("--partition=p") for part in parts] == [1, 1]
    assert ["--nodes=1" in parts[0], "--nodes=2" in parts[1]] == [True, True]
    assert ["--gpus-per-node" in part for part in parts] == [False, True]


def test_elastic_apps_take_what_there_is_and_survivors_keep_their_nodes(home: Path) -> None:
    app = AppDef("app", [role(num_replicas=4, min_replicas=2)])

    assert directives(plan(app))[-3:] == ["--nodes=2-4", "--ntasks=4", "--spread-job"]
    assert "--no-kill" not in directives(plan(app))
    assert "--no-kill" in directives(plan(app, policy="live"))
    assert "--no-kill" in directives(plan(app, policy="shrink"))
    assert "--no-kill" not in directives(plan(app, policy="restart"))


def test_a_thousand_replicas_are_one_job(home: Path) -> None:
    app = AppDef("app", [role(num_replicas=1000, resource=Resource(1, 0, 100))])

    assert directives(plan(app)).count("--nodes=1000") == 1


def test_an_option_that_is_ours_is_refused_with_what_to_say_instead(home: Path) -> None:
    with pytest.raises(UserError, match=r"sbatch\.output: .* job_dir"):
        plan(sbatch__output="x")
    with pytest.raises(UserError, match=r"names no option; write sbatch\.NAME=VALUE"):
        plan(**{"sbatch.a b": "x"})


@pytest.mark.parametrize("value", ["two\nlines", "nul\0", "x" * 10_000], ids=len)
def test_what_a_directive_cannot_carry_is_refused(home: Path, value: str) -> None:
    with pytest.raises(UserError, match=r"comment: .* directive"):
        plan(comment=value)


def test_a_directive_is_quoted_by_slurms_rules(home: Path) -> None:
    (line,) = [d for d in directives(plan(comment='a "b" \\ c')) if "comment" in d]

    assert line == '--comment="a \\"b\\" \\\\ c"'


def test_a_folder_that_slurm_would_read_otherwise_is_refused(home: Path) -> None:
    with pytest.raises(UserError, match=r"job_dir: .* has a % or"):
        plan(job_dir="/shared/100%")


def test_planning_never_changes_the_app(home: Path) -> None:
    copied = Workspace({os.getcwd(): "here"})
    app = AppDef("app", [role(args=[HOSTILE], env={"A": HOSTILE}, workspace=copied)])
    before, kept = app_to_dict(app), copy.deepcopy(app)

    get_runner().dryrun(app, "slurm", {"job_dir": "/shared/it"}, workspace=os.getcwd())
    plan(app)

    assert (app_to_dict(app), app) == (before, kept)


def test_words_and_values_of_a_role_are_not_in_the_script(home: Path) -> None:
    app = AppDef("app", [role(args=["canary-1"], env={"TOKEN": "canary-2"})])

    info = plan(app)

    assert "canary" not in str(info)


@pytest.mark.parametrize("policy", list(RetryPolicy))
def test_retries_of_every_policy_travel_with_the_app(home: Path, policy: RetryPolicy) -> None:
    app = AppDef("app", [role(max_retries=2, retry_policy=policy)])

    (told,) = plan(app).request.parcel.app["roles"]

    assert (told["max_retries"], told["retry_policy"]) == (2, policy.value)


@pytest.mark.process
def test_hostile_variables_and_folders_arrive_unchanged_and_execute_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "x" * 10_000
    odd = {"ODD": HOSTILE, "LONG": long, "EMPTY": "", "LINES": "a\nb\n", "DASH": "-n"}
    for name, value in odd.items():
        monkeypatch.setenv(name, value)
    place = tmp_path / "it's $HOME `touch pwned`; touch pwned"
    place.mkdir()
    python = place / "python"
    python.write_text('#!/bin/bash\n[ "$2" = -c ] || { printf "%s\\0" "$PWD" "$@"; env -0; }\n')
    python.chmod(0o755)
    scheduler = create_scheduler("torchx")
    cfg = {"job_dir": str(place / "job"), "python": str(python), "cwd": str(place)}

    from torchloom.schedulers.batch.folder import write

    request = scheduler.submit_dryrun(APP, cfg).request
    write(request)
    script = request.folder / "job.sh"
    done = subprocess.run(["bash", str(script)], env={"PATH": os.environ["PATH"]}, stdout=-1)

    parts = done.stdout.decode().split("\0")
    assert parts[:5] == [str(place), "-P", "-m", "torchloom.cli.batch", str(request.folder)]
    seen = dict(part.split("=", 1) for part in parts[5:] if "=" in part)
    assert {name: seen.get(name) for name in odd} == odd
    assert list(tmp_path.rglob("pwned")) == []
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in request.folder.iterdir()}
    private = dict.fromkeys(("env.sh", "job.json", "source.json"), "0o600")
    assert modes == {**private, "job.sh": "0o700"}


@pytest.mark.process
def test_a_host_without_a_usable_python_fails_at_once_with_the_remedy(
    home: Path, tmp_path: Path
) -> None:
    from torchloom.schedulers.batch.folder import write

    cfg = {"job_dir": str(tmp_path / "job"), "python": "/nowhere/python"}
    request = create_scheduler("torchx").submit_dryrun(APP, cfg).request
    write(request)

    done = subprocess.run(["bash", str(request.folder / "job.sh")], stderr=-1, text=True)

    assert done.returncode == 127
    assert "has no usable /nowhere/python: submit with one on a file system" in done.stderr


def test_a_job_dir_that_exists_is_refused_and_stays(home: Path, tmp_path: Path) -> None:
    from torchloom.schedulers.batch.folder import write

    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "mine").touch()

    with pytest.raises(UserError, match=r"job_dir: .* exists; name a new folder"):
        write(create_scheduler("t").submit_dryrun(APP, {"job_dir": str(tmp_path / "job")}).request)
    assert (tmp_path / "job" / "mine").exists()


def test_a_spec_file_names_engine_options_and_policy(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from torchloom.cli.main import main

    told = {"name": "told", "command": ["true"], "scheduler": "slurm"}
    told |= {"options": {"partition": "gpu"}, "recovery": {"policy": "shrink"}}
    Path("job.json").write_text(json.dumps(told))

    assert main(["plan", "job.json"]) == 0
    said = capsys.readouterr().out
    assert "#SBATCH --partition=gpu\n" in said
    assert "#SBATCH --no-kill\n" in said
    assert main(["plan", "-cfg", "partition=cpu", "job.json"]) == 0
    assert "#SBATCH --partition=cpu\n" in capsys.readouterr().out  # what is typed wins


def test_a_plan_for_all_engines_says_what_each_would_get_or_why_not(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from torchloom.cli.main import main

    Path("train.py").touch()

    assert main(["plan", "--all", "--json", "train.py"]) == 0
    told = {one["scheduler"]: one for one in json.loads(capsys.readouterr().out)}
    assert {"local", "lsf", "pbs", "slurm"} <= told.keys()
    assert "#SBATCH --nodes=1" in told["slurm"]["request"]
    assert "#PBS -l select=1" in told["pbs"]["request"]
    assert told["slurm"]["notes"] != []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-n", "16", "--ppn", "8"], "--nodes=2"),
        (["-n", "8", "--ppn", "8"], "--nodes=1"),
        (["--ppn", "4"], "--nodes=1"),
    ],
)
def test_processes_and_processes_a_host_make_hosts(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    from torchloom.cli.main import main

    Path("train.py").touch()

    assert main(["plan", "-s", "slurm", *words, "train.py"]) == 0
    assert f"#SBATCH {expected}\n" in capsys.readouterr().out
    assert main(["plan", "-s", "slurm", "-n", "9", "--ppn", "4", "train.py"]) == 2
    assert main(["plan", "-n", "8", "--ppn", "4", "train.py"]) == 2
