"""What LSF would be sent: built without LSF, from the app and the options alone."""

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.errors import LoomError, UserError
from torchloom.schedulers.batch.folder import write
from torchloom.schedulers.lsf_scheduler import create_scheduler
from torchloom.specs.api import AppDef, Resource, app_to_dict

from ..harness.cluster.lsf import Lsf
from ..harness.cluster.lsf.bsub import DONE, FLAGS, USAGE, VALUED
from ..harness.cluster.lsf.options import part
from ..harness.cluster.lsf.resreq import gpus, requirement, slots
from ..harness.cluster.lsf.script import embedded
from .planned import APP, HOSTILE, directives_of, options_of, role

FIXED = ["-J app", "-o /shared/it/report.log", "-env none"]


def plan(app: AppDef = APP, **cfg: Any) -> Any:
    options = options_of(cfg)
    place = {} if "jobdir" in cfg else {"job_dir": "/shared/it"}
    return create_scheduler("torchx").submit_dryrun(app, {**place, **options})


def directives(info: Any) -> list[str]:
    return directives_of(info, "#BSUB")


def as_lsf_reads(info: Any) -> list[tuple[str, str]]:
    """Return the options that a strict reader of LSF's grammar finds in the script."""
    found, rest = part("bsub", embedded(info.request.script), FLAGS, VALUED, USAGE)
    assert rest == []
    return found


def test_a_plan_needs_no_lsf_and_run_says_where_it_must_be_run(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    before = sorted(map(str, tmp_path.rglob("*")))
    scheduler = create_scheduler("torchx")

    info = scheduler.submit_dryrun(APP, {})

    assert f"submit: bsub < {home}/jobs/app-" in str(info)
    assert str(info).endswith(info.request.script.rstrip("\n"))
    with pytest.raises(LoomError, match="no bsub on PATH; run this on a login node"):
        scheduler.schedule(info)
    assert sorted(map(str, tmp_path.rglob("*"))) == before


def test_torchxs_options_are_there_with_its_defaults() -> None:
    options = {name: opt.default for name, opt in create_scheduler("s").run_opts()}

    assert {
        name: options[name]
        for name in ("lsf_queue", "jobdir", "container_workdir", "host_network", "shm_size")
    } == {
        "lsf_queue": None,
        "jobdir": None,
        "container_workdir": None,
        "host_network": False,
        "shm_size": "64m",
    }


def test_what_only_a_container_could_honour_is_refused_and_jobdir_is_job_dir(home: Path) -> None:
    with pytest.raises(UserError, match=r"container_workdir: .* without a container; use cwd="):
        plan(container_workdir="/work")
    with pytest.raises(UserError, match=r"shm_size: .* the host's /dev/shm counts"):
        plan(shm_size="1g")
    with pytest.raises(UserError, match="jobdir and job_dir are one"):
        plan(jobdir="/a", job_dir="/b")
    assert "folder=/shared/jobs/x\n" in plan(jobdir="/shared/jobs/x").request.script


VALUES: dict[Any, Any] = {str: "x1", int: 7, bool: True, list[str]: ["true"]}
OTHERS = {"policy": "shrink", "bsub.*": "1", "walltime": "1:30", "array": "1-9"}
REFUSED = ("container_workdir", "shm_size")


@pytest.mark.parametrize("name", [name for name, _ in create_scheduler("s").run_opts()])
def test_every_option_changes_the_plan_or_is_refused(home: Path, name: str) -> None:
    option = dict(create_scheduler("s").run_opts())[name]
    app = AppDef("app", [role(resource=Resource(2, 1, 1024))])
    fixed = {} if name in ("job_dir", "jobdir", "id") else {"job_dir": "/shared/it"}
    given = {name.replace(".*", ".cn_mem"): OTHERS.get(name, VALUES[option.opt_type])}

    def seen(**more: Any) -> tuple[object, ...]:
        request = create_scheduler("s").submit_dryrun(app, {**fixed, **more}).request
        script = request.script.replace(request.parcel.run_id, "ID")
        return script, dict(request.parcel.cfg), request.notes

    if name in REFUSED:
        with pytest.raises(UserError):
            seen(**given)
    elif name == "id":
        assert "/x1/" in create_scheduler("s").submit_dryrun(app, given).request.script
    else:
        assert seen() != seen(**given)


def test_the_script_asks_for_what_the_roles_need(home: Path) -> None:
    app = AppDef("app", [role(num_replicas=3, resource=Resource(8, 4, 2048), max_retries=1)])

    info = plan(app, lsf_queue="gpu", walltime="4:00:30", bsub__sp="5", bsub__B="true")

    assert directives(info) == [
        *FIXED,
        "-q gpu",
        "-W 4:01",
        "-wt 2",
        "-wa URG",
        "-r",
        "-n 24",
        '-R "span[ptile=8]"',
        "-gpu num=4:j_exclusive=yes",
        '-R "rusage[mem=2048MB/host]"',
        "-sp 5",
        "-B",
    ]


def test_a_role_that_says_nothing_gets_the_clusters_defaults(home: Path) -> None:
    assert directives(plan(warn=0)) == [*FIXED, "-rn", "-n 1", '-R "span[hosts=1]"']


SMALL, BIG = Resource(2, 0, 512), Resource(8, 2, 4096)
SHAPES = {
    "one host": [role(resource=SMALL)],
    "many": [role(num_replicas=1000, resource=SMALL)],
    "gpu": [role(num_replicas=2, resource=BIG)],
    "elastic": [role(num_replicas=4, min_replicas=2, resource=SMALL)],
    "several roles": [role("a", resource=SMALL), role("b", num_replicas=2, resource=BIG)],
    "hostile": [role(args=[HOSTILE], env={"A": HOSTILE}, resource=SMALL)],
}
EXPECTED = {
    "one host": ((2, 2), None, (0, False)),
    "many": ((2000, 2000), 2, (0, False)),
    "gpu": ((16, 16), 8, (2, False)),
    "elastic": ((4, 8), 2, (0, False)),
    "several roles": ((24, 24), 8, (2, False)),
    "hostile": ((2, 2), None, (0, False)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_app_is_read_by_lsfs_grammar_and_stays_as_it_was(
    home: Path, shape: str
) -> None:
    app = AppDef(HOSTILE if shape == "hostile" else "app", SHAPES[shape])
    before, kept = app_to_dict(app), copy.deepcopy(app)

    found = as_lsf_reads(plan(app, project="it's"))

    options = dict(found)
    asked = requirement([value for name, value in found if name == "R"])
    gpu = gpus(options["gpu"]) if "gpu" in options else (0, False)
    assert {name for name, _ in found} <= DONE
    assert (slots(options["n"]), asked.ptile, gpu) == EXPECTED[shape]
    assert asked.memory_mb == max(role.resource.memMB for role in app.roles)
    assert (options["P"], options["wa"], options["env"]) == ("it's", "URG", "none")
    assert (app_to_dict(app), app) == (before, kept)


def test_what_lsf_cannot_be_told_as_it_is_is_noted(home: Path) -> None:
    notes = plan(AppDef("a[1]", SHAPES["several roles"]), walltime="1").request.notes

    said = "\n".join(notes)
    assert "LSF knows it as 'a_1_': 'a[1]' is not a valid name there" in said
    assert "roles a, b need different hosts; each host is as large as the largest need" in said
    assert "walltime: a minute leaves no room for a warning" in said


def test_a_warning_comes_behind_the_start_and_before_the_limit(home: Path) -> None:
    def warned(**cfg: Any) -> list[str]:
        return [d for d in directives(plan(**cfg)) if d.startswith(("-W", "-wt"))]

    assert warned(walltime="90", warn=90) == ["-W 1:30", "-wt 2"]
    assert warned(walltime="3", warn=600) == ["-W 0:03", "-wt 2"]
    assert warned(walltime="1") == ["-W 0:01"]
    assert warned(walltime="60/n1", warn=0) == ["-W 1:00/n1"]
    assert warned() == ["-wt 2"]  # the queue may have a limit


def test_an_array_is_in_the_name(home: Path) -> None:
    found = dict(as_lsf_reads(plan(array="1-9:2,20%4")))

    assert (found["J"], found["o"]) == ("app[1-9:2,20]%4", "/shared/it/report.log.%I")
    for bad in ("0-9", "1-9%0", "x", "1-9]; touch pwned"):
        with pytest.raises(UserError, match=r"array: .* write 1-9"):
            plan(array=bad)


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("description", "two\nlines", "control characters"),
        ("description", "x" * 10_000, "longer than"),
        ("description", "both ' and \"", "both kinds of quotes"),
        ("description", "#comment", "begins with a #"),
        ("job_dir", "/shared/100%", "has a %"),
        ("cwd", "/a\n#BSUB -P x", "control characters"),
        ("python", "/a\n#BSUB -P x", "control characters"),
        ("walltime", "soon", "is not a time"),
        ("walltime", "0", "a minute or more"),
        ("cores", 0, "a number from 1"),
        ("bsub.o", "x", "set its place with job_dir"),
        ("bsub.env", "all", "private file"),
        ("bsub.a b", "x", "names no option"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(
    home: Path, option: str, value: object, why: str
) -> None:
    with pytest.raises(UserError, match=f"{option.split()[0]}.*{why}"):
        plan(**{option: value})


def test_a_bsub_that_tells_no_number_is_not_used(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bsub").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BSUB_QUIET", "1")
    scheduler = create_scheduler("torchx")

    with pytest.raises(UserError, match=r"BSUB_QUIET keeps bsub from printing .* unset it"):
        scheduler.schedule(scheduler.submit_dryrun(APP, {}))


@pytest.fixture
def lsf(tmp_path: Path) -> Iterator[Lsf]:
    with Lsf(tmp_path / "lsf") as lsf:
        yield lsf


@pytest.mark.process
def test_hostile_names_folders_and_variables_arrive_unchanged_and_execute_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lsf: Lsf
) -> None:
    odd = {"ODD": HOSTILE, "LONG": "x" * 10_000, "EMPTY": "", "LINES": "a\nb\n", "DASH": "-n"}
    for name, value in odd.items():
        monkeypatch.setenv(name, value)
    place = tmp_path / "it's $HOME `touch pwned`; touch pwned"
    place.mkdir()
    python = place / "python"
    python.write_text('#!/bin/bash\n[ "$2" = -c ] || { printf "%s\\0" "$PWD" "$@"; env -0; }\n')
    python.chmod(0o755)
    words = "$(touch pwned) `touch pwned` \\ ; touch pwned | grüße 織機 *"
    cfg = {"job_dir": str(place / "job"), "python": str(python), "cwd": str(place)}
    info = create_scheduler("torchx").submit_dryrun(
        AppDef(HOSTILE, APP.roles), {**cfg, "description": words, "bsub.P": words}
    )

    write(info.request)
    said = lsf.run("bsub", stdin=(place / "job" / "job.sh").read_text()).stdout
    job = said.partition("<")[2].partition(">")[0]
    lsf.wait(job)
    fields = "stat proj_name job_description job_name"
    shown = json.loads(lsf.run("bjobs", "-json", "-o", fields, job).stdout)["RECORDS"][0]

    parts = (place / "job" / "out.log").read_text().split("\0")
    assert parts[:5] == [str(place), "-P", "-m", "torchloom.cli.batch", str(place / "job")]
    seen = dict(part.split("=", 1) for part in parts[5:] if "=" in part)
    assert {name: seen.get(name) for name in odd} == odd
    assert (seen["LOOM_LSF_JOB"], "LOOM_LSF_TASK" in seen) == (job, False)
    assert (shown["STAT"], shown["PROJ_NAME"], shown["JOB_DESCRIPTION"]) == ("DONE", words, words)
    assert shown["JOB_NAME"].startswith("it_s _so_ _HOME")
    assert list(tmp_path.rglob("pwned")) == []
    assert list(Path(os.getcwd()).glob("pwned")) == []
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in info.request.folder.iterdir()}
    assert {modes["env.sh"], modes["job.json"]} == {"0o600"}


@pytest.mark.parametrize(
    ("words", "expected"), [(["-n", "16", "--ppn", "8"], "-n 16"), (["--ppn", "4"], "-n 4")]
)
def test_processes_and_processes_a_host_make_hosts(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    from torchloom.cli.main import main

    Path("train.py").touch()

    assert main(["plan", "-s", "lsf", *words, "train.py"]) == 0
    assert f"#BSUB {expected}\n" in capsys.readouterr().out
