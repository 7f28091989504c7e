"""What PBS would be sent: built without PBS, from the app and the options alone."""

import copy
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.errors import LoomError, UserError
from torchloom.schedulers.batch.folder import write
from torchloom.schedulers.pbs_scheduler import create_scheduler
from torchloom.specs.api import AppDef, Resource, Workspace, app_to_dict

from ..harness.cluster.pbs import Pbs
from .planned import APP, HOSTILE, directives_of, options_of, role
from .test_slurm_plan import VALUES


def plan(app: AppDef = APP, **cfg: Any) -> Any:
    options = {"job_dir": "/shared/jobs/it", **options_of(cfg)}
    return create_scheduler("torchx").submit_dryrun(app, options)


def directives(info: Any) -> list[str]:
    return directives_of(info, "#PBS")


def test_a_plan_needs_no_pbs_and_touches_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    before = sorted(map(str, tmp_path.rglob("*")))

    info = create_scheduler("torchx").submit_dryrun(APP, {})

    assert f"submit: qsub {home}/jobs/app-" in str(info)
    assert str(info).endswith(info.request.script.rstrip("\n"))
    assert sorted(map(str, tmp_path.rglob("*"))) == before
    with pytest.raises(LoomError, match="no qsub on PATH; run this on a login node"):
        create_scheduler("torchx").schedule(info)
    assert list(home.iterdir()) == []


PBS_VALUES = {
    "policy": "shrink",
    "qsub.*": "1",
    "walltime": "600",
    "place": "vscatter",
    "mem": "5gb",
    "dependency": "afterok:1",
}


@pytest.mark.parametrize("name", [name for name, _ in create_scheduler("s").run_opts()])
def test_every_option_changes_the_plan(home: Path, name: str) -> None:
    option = dict(create_scheduler("s").run_opts())[name]
    value = PBS_VALUES.get(name, VALUES[option.opt_type])
    app = AppDef("app", [role(resource=Resource(2, 1, 1024))])
    fixed = {} if name in ("job_dir", "id") else {"job_dir": "/shared/it", "id": "it"}

    def seen(**more: Any) -> tuple[str, object]:
        request = create_scheduler("s").submit_dryrun(app, {**fixed, **more}).request
        return request.script.replace(request.parcel.run_id, "ID"), dict(request.parcel.cfg)

    one, other = seen(), seen(**{name.replace(".*", ".S"): value})

    if name == "id":  # it names the folder
        assert "/x1/" in create_scheduler("s").submit_dryrun(app, {"id": "x1"}).request.script
    else:
        assert one != other


def test_the_script_asks_for_what_the_roles_need(home: Path) -> None:
    app = AppDef("app", [role(num_replicas=3, resource=Resource(8, 4, 2048), max_retries=1)])

    made = plan(
        app, queue="debug", account="Proj", walltime="1:00:00", filesystems="home:eagle",
        chunk="system=polaris", exclusive=True, qsub__l="software=x", qsub__h="true",
    )  # fmt: skip

    assert directives(made) == [
        "-N app",
        "-j oe",
        "-o /shared/jobs/it/out.log",
        "-k doe",
        "-q debug",
        "-A Proj",
        "-l walltime=1:00:00",
        "-l filesystems=home:eagle",
        "-l select=3:ncpus=8:ngpus=4:mem=2048mb:system=polaris",
        "-S /shared/jobs/it/job.sh",
        "-l place=scatter:excl",
        "-r y",
        "-l software=x",
        "-h",
    ]


def test_a_role_that_says_nothing_gets_the_sites_defaults(home: Path) -> None:
    script = "-S /shared/jobs/it/job.sh"
    assert directives(plan(warn=0))[4:] == ["-l select=1", script, "-l place=scatter", "-r n"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-n", "2"], "select=1:ncpus=2:mpiprocs=2"),
        (["-n", "16", "--ppn", "8"], "select=2:ncpus=8:mpiprocs=8"),
        (["-n", "2", "-cfg", "ncpus=1"], "select=1:ncpus=1"),
        (["-n", "1"], "select=1"),
    ],
)
def test_each_rank_has_a_core_unless_the_user_says_otherwise(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    from torchloom.cli.main import main

    Path("train.py").touch()

    assert main(["plan", "-s", "pbs", *words, "train.py"]) == 0
    assert f"#PBS -l {expected}\n" in capsys.readouterr().out


def test_the_script_is_the_top_process_where_its_path_can_be_said(home: Path) -> None:
    odd, chosen = plan(job_dir="/shared/it's here"), plan(qsub__S="/bin/zsh")

    assert [line for line in directives(odd) if line.startswith("-S")] == []
    assert [line for line in directives(chosen) if line.startswith("-S")] == ["-S /bin/zsh"]


def test_roles_are_chunks_of_one_job_and_a_thousand_replicas_are_one(home: Path) -> None:
    small, big = Resource(2, 0, 512), Resource(8, 2, 4096)
    app = AppDef("app", [role("a", resource=small), role("b", num_replicas=1000, resource=big)])

    assert "-l select=1:ncpus=2:mem=512mb+1000:ncpus=8:ngpus=2:mem=4096mb" in directives(plan(app))


def test_what_pbs_cannot_promise_is_noted_and_survivors_keep_their_hosts(home: Path) -> None:
    app = AppDef("größe", [role(num_replicas=4, min_replicas=2)])
    tolerant = "-W tolerate_node_failures=all"

    notes = plan(app).request.notes

    assert "PBS calls the job gr__e: its names have letters, digits, . _ + -" in notes
    assert any("all 4 hosts or none; min_replicas counts" in note for note in notes)
    assert "-l select=4" in directives(plan(app))
    wanted = {"live": True, "shrink": True, "restart": False, "fail": False}
    assert {p: tolerant in directives(plan(app, policy=p)) for p in wanted} == wanted
    assert "-l select=6" in directives(plan(app, spares=2))


@pytest.mark.parametrize(
    ("cfg", "said"),
    [
        ({"qsub.o": "x"}, r"qsub\.o: .* job_dir"),
        ({"qsub.q": "x"}, r"qsub\.q: use queue=\.\."),
        ({"qsub.V": "true"}, r"qsub\.V: variables are passed in a private file"),
        ({"qsub.long": "x"}, r"qsub\.long: qsub's options are letters"),
        ({"walltime": "soon"}, r"walltime: 'soon' is not a time: HH:MM:SS, or seconds"),
        ({"walltime": "1,select=9"}, r"walltime: .* has a comma, blank or quote"),
        ({"filesystems": "home eagle"}, r"filesystems: .* has a comma, blank or quote"),
        ({"select": "1,walltime=9"}, r"select: .* has a comma, blank or quote"),
        ({"mem": "5gb:host=x"}, r"mem: .* is not an amount"),
        ({"job_dir": "/a:b"}, r"job_dir: .* has a : or \^"),
        ({"queue": "two\nlines"}, r"queue: .* control characters"),
        ({"account": "x" * 10_000}, r"account: .* is longer than"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_for_is_refused(home: Path, cfg: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan(**cfg)


def test_planning_never_changes_the_app_and_says_nothing_of_its_words(home: Path) -> None:
    copied = Workspace({os.getcwd(): "here"})
    words = {"args": [HOSTILE, "canary-1"], "env": {"A": HOSTILE, "TOKEN": "canary-2"}}
    app = AppDef("app", [role(**words, workspace=copied)])
    before, kept = app_to_dict(app), copy.deepcopy(app)

    info = plan(app)

    assert (app_to_dict(app), app) == (before, kept)
    assert "canary" not in str(info)


@pytest.fixture(scope="module")
def pbs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pbs]:
    """Keep a PBS on this machine."""
    with Pbs(tmp_path_factory.mktemp("pbs"), settings={"kill_delay": 0.3}) as system:
        yield system


@pytest.mark.process
def test_hostile_values_arrive_unchanged_through_qsub_and_execute_nothing(
    pbs: Pbs, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = {"ODD": HOSTILE, "LONG": "x" * 10_000, "EMPTY": "", "LINES": "a\nb\n", "DASH": "-n"}
    for name, value in odd.items():
        monkeypatch.setenv(name, value)
    place = tmp_path / 'it\'s $HOME `touch pwned`; touch pwned # \\ "x" 織機'
    place.mkdir()
    python, found = place / "python", tmp_path / "found"
    python.write_text(
        f'#!/bin/bash\n[ "$2" = -c ] || {{ printf "%s\\0" "$PWD" "$@"; env -0; }} > {found}\n'
    )
    python.chmod(0o755)
    account = 'it\'s "so" $(touch pwned) \\ ; # %'
    cfg = {"job_dir": str(place / "job"), "python": str(python), "cwd": str(place)}
    request = create_scheduler("t").submit_dryrun(APP, {**cfg, "account": account}).request
    write(request)

    done = pbs.run(*request.argv)
    assert (done.returncode, done.stderr) == (0, "")
    pbs.wait(done.stdout.partition(".")[0])

    assert (request.folder / "out.log").read_text() == ""
    parts = found.read_text().split("\0")
    assert parts[:5] == [str(place), "-P", "-m", "torchloom.cli.batch", str(request.folder)]
    seen = dict(part.split("=", 1) for part in parts[5:] if "=" in part)
    assert {name: seen.get(name) for name in odd} == odd
    assert seen["LOOM_ENGINE_JOB"] == seen["PBS_JOBID"].partition(".")[0]
    assert list(tmp_path.rglob("pwned")) == []
    job = pbs.run("qstat", "-x", "-f", done.stdout.strip()).stdout
    assert f"Account_Name = {account}\n" in job


@pytest.mark.process
@pytest.mark.parametrize(
    ("cfg", "job", "slept"),
    [
        ({"walltime": "1:00:00"}, "7.ctl", "3480"),
        ({"walltime": "100", "warn": 60}, "7.ctl", "50"),
        ({"walltime": "100", "warn": 0}, "7.ctl", ""),
        ({}, "7.ctl", "1680"),  # the queue's own limit, as qstat says
        ({}, "unknown", ""),
    ],
    ids=str,
)
def test_the_script_is_told_in_time_that_its_time_runs_out(
    home: Path, tmp_path: Path, cfg: dict[str, Any], job: str, slept: str
) -> None:
    bin_ = _programs(
        tmp_path,
        sleep=f"echo $1 > {tmp_path}/slept",
        qstat='[ "$2" = 7.ctl ] && echo "    Resource_List.walltime = 00:30:00"',
        python=f'[ "$2" = -c ] || until [ -e {tmp_path}/told ]; do /bin/sleep 0.01; done',
    )
    request = plan(python=str(bin_ / "python"), cwd=str(tmp_path), **cfg).request
    lines = [x for x in request.script.splitlines() if "env.sh" not in x and "exec " not in x]
    script = "\n".join([f"trap 'touch {tmp_path}/told' USR1", *lines, "wait"])

    path = f"{bin_}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", script], env={"PATH": path, "PBS_JOBID": job}, timeout=20)

    wrote = tmp_path / "slept"
    assert (wrote.read_text().strip() if wrote.exists() else "") == slept
    assert (tmp_path / "told").exists() == bool(slept)


@pytest.mark.process
@pytest.mark.parametrize(
    ("refuses", "index", "expected"),
    [
        (False, "", ["qrerun 7.ctl"]),
        (True, "", ["qrerun 7.ctl", "qsub -W depend=afterany:7.ctl", "qdel 7.ctl"]),
        (True, "3", ["qrerun 7.ctl"]),  # one task of an array cannot be submitted alone
    ],
)
def test_a_job_that_may_not_be_rerun_is_submitted_again(
    home: Path, tmp_path: Path, refuses: bool, index: str, expected: list[str]
) -> None:
    note = f'echo "${{0##*/}} $*" >> {tmp_path}/called'
    refused = "echo qrerun: Unauthorized Request >&2; exit 159" if refuses else "exit 0"
    bin_ = _programs(tmp_path, qrerun=f"{note}; {refused}", qsub=note, qdel=note)
    words = plan().request.parcel.requeue
    env = {"PATH": f"{bin_}:{os.environ['PATH']}", "PBS_JOBID": "7.ctl", "PBS_O_WORKDIR": "/"}

    done = subprocess.run([*words, "7"], env=env | {"PBS_ARRAY_INDEX": index}, stderr=-1)

    called = (tmp_path / "called").read_text().replace(" /shared/jobs/it/job.sh", "")
    assert called.splitlines() == expected
    assert (done.returncode == 0) == (not refuses or not index)


def _programs(folder: Path, **texts: str) -> Path:
    bin_ = folder / "bin"
    bin_.mkdir()
    for name, text in texts.items():
        (bin_ / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_ / name).chmod(0o755)
    return bin_
