import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..harness.cluster.lsf import Lsf
from ..harness.home import until

pytestmark = pytest.mark.process
HERE = socket.gethostname()
FIELDS = "jobid jobindex stat exit_code exit_reason exec_host job_name"
TERM_RUNLIMIT = "TERM_RUNLIMIT: job killed after reaching LSF run time limit"
TERM_OWNER = "TERM_OWNER: job killed by owner"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lsf]:
    """Keep one LSF on this machine for all tests of the file; its minutes have a second."""
    brisk = {"minute": 1.0, "terminate_interval": 1.0, "runlimit_grace": 1.0}
    with Lsf(tmp_path_factory.mktemp("lsf"), settings=brisk) as lsf:
        yield lsf


@pytest.fixture
def lsf(system: Lsf) -> Iterator[Lsf]:
    """Give it without jobs of other tests."""
    yield system
    system.cancel_all()


def submit(lsf: Lsf, script: str, *options: str, cwd: Path | None = None) -> str:
    """Submit a script; return the job's number."""
    done = lsf.run("bsub", *options, cwd=cwd, stdin=script)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.partition("<")[2].partition(">")[0]


def show(lsf: Lsf, job: str) -> dict[str, str]:
    """Return the fields of one job."""
    done = lsf.run("bjobs", "-json", "-o", FIELDS, job)
    assert (done.returncode, done.stderr) == (0, "")
    whole = json.loads(done.stdout)
    assert (whole["COMMAND"], whole["JOBS"]) == ("bjobs", 1)
    record: dict[str, str] = whole["RECORDS"][0]
    return record


def stat(lsf: Lsf, job: str) -> str:
    """Return the job's state."""
    return show(lsf, job)["STAT"]


def ended(lsf: Lsf, job: str) -> dict[str, str]:
    """Come back when the job has ended; return its fields."""
    lsf.wait(job)
    return show(lsf, job)


def output(path: Path) -> str:
    """Return what a job wrote, without the report before it."""
    return path.read_text().partition("The output (if any) follows:\n\n")[2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-zz"], "bsub: illegal option -- zz\nUsage: bsub "),
        (["-n"], "bsub: option requires an argument -- n\nUsage: bsub "),
        (["-n", "two"], "Bad argument for option -n. Job not submitted.\n"),
        (
            ["-n", "0"],
            "The number of processors must be a positive integer. Job not submitted.\n",
        ),
        (["-W", "soon"], "soon: Bad RUNLIMIT specification. Job not submitted.\n"),
        (["-W", "5", "-wt", "x"], "Bad time specification. Job not submitted.\n"),
        (
            ["-W", "5", "-wt", "1", "-wa", "NOTHING"],
            "Bad or invalid action specification. Job not submitted.\n",
        ),
        (["-R", "span[hosts=2]"], "Bad resource requirement syntax. Job not submitted.\n"),
        (["-R", "span hosts=1"], "Bad resource requirement syntax. Job not submitted.\n"),
        (["-R", "rusage[tea=1]"], "Bad resource name. Job not submitted.\n"),
        (["-R", "cu[type=rack]"], "bsub: cu[] is not done by this fake of LSF.\n"),
        (["-gpu", "number=1"], "Bad argument for option -gpu. Job not submitted.\n"),
        (["-J", "a[0-2]"], "Bad argument for option -J. Job not submitted.\n"),
        (["-J", "a[1-2000]"], "Job array index too large. Job not submitted.\n"),
        (["-q", "nowhere"], "nowhere: No such queue. Job not submitted.\n"),
        (
            ["-m", "nowhere"],
            "nowhere: Bad host name, host group name or cluster name. Job not submitted.\n",
        ),
        (["-w", "done(99)"], "99: No matching job found. Job not submitted.\n"),
        (["-w", "after 1"], "after 1: Dependency condition syntax error. Job not submitted.\n"),
        (["-sp", "high"], "high: Illegal job priority. Job not submitted.\n"),
        (["-Is"], "bsub: -Is is not done by this fake of LSF.\n"),
    ],
)
def test_bsub_refuses_in_the_words_of_lsf(system: Lsf, options: list[str], said: str) -> None:
    done = system.run("bsub", *options, stdin="echo hello\n")

    assert (done.returncode, done.stdout, done.stderr[: len(said)]) == (255, "", said)


def test_options_in_a_script_count_wherever_they_stand_and_the_line_wins(lsf: Lsf) -> None:
    late = lsf.run("bsub", stdin="true\n#BSUB -zz\n")
    empty = lsf.run("bsub", stdin="#!/bin/sh\n#BSUB -n 1\n")
    submitted = lsf.run("bsub", "-J", "line", stdin="#BSUB -H -J script -q gpu # why\ntrue\n")

    assert [(done.returncode, done.stderr.partition("\n")[0]) for done in (late, empty)] == [
        (255, "bsub: illegal option -- zz"),
        (255, "No command is specified in the script file. Job not submitted."),
    ]
    assert submitted.stdout.endswith("> is submitted to queue <gpu>.\n")
    job = submitted.stdout.partition("<")[2].partition(">")[0]
    assert (show(lsf, job)["JOB_NAME"], stat(lsf, job)) == ("line", "PSUSP")


def test_what_is_not_there_has_lsf_words_and_codes(lsf: Lsf) -> None:
    job = submit(lsf, "true", "-H")
    killed = lsf.run("bkill", job)

    said = [
        (done.returncode, done.stderr)
        for done in (
            lsf.run("bjobs", "999"),
            lsf.run("bjobs"),
            lsf.run("bjobs", "x"),
            lsf.run("bkill", job),
            lsf.run("bkill", "999"),
            lsf.run("bkill", "-s", "NOTHING", job),
            lsf.run("brequeue", job),
            lsf.run("bhosts", "nowhere"),
            lsf.run("blaunch", HERE, "true"),
        )
    ]
    listed = lsf.run("bjobs", "-json", "-o", "id", "999")

    assert (killed.returncode, killed.stdout) == (0, f"Job <{job}> is being terminated\n")
    assert said == [
        (255, "Job <999> is not found\n"),
        (0, "No unfinished job found\n"),
        (255, "x: Illegal job ID.\n"),
        (255, f"Job <{job}>: Job has already finished\n"),
        (255, "Job <999>: No matching job found\n"),
        (255, "NOTHING: Illegal signal value\n"),
        (255, f"Job <{job}>: Job has already finished\n"),
        (255, "nowhere: Bad host name, host group name or cluster name\n"),
        (255, "blaunch: can be used only within an LSF job.\n"),
    ]
    assert (listed.returncode, json.loads(listed.stdout)) == (
        255,
        {
            "COMMAND": "bjobs",
            "JOBS": 0,
            "RECORDS": [{"JOBID": "999", "ERROR": "Job <999> is not found"}],
        },
    )


def test_a_job_gets_the_shells_environment_and_lsfs_own(
    lsf: Lsf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_SHELL", "a,b 'c' \\ \"d\"\nnew line: größe")
    script = (
        "env -0 > env.$LSB_JOBID; cat $LSB_DJOB_RANKFILE > ranks; echo out; echo err >&2; exit 7"
    )

    job = submit(lsf, script, "-n", "2", "-J", "run", "-o", "o.%J", "-e", "e.%J", cwd=tmp_path)
    shown = ended(lsf, job)
    bare = submit(lsf, script, "-env", "PATH,ONLY=1", cwd=tmp_path)
    ended(lsf, bare)

    env, little = (
        dict(line.partition("=")[::2] for line in text.split("\0")[:-1])
        for text in ((tmp_path / f"env.{number}").read_text() for number in (job, bare))
    )
    assert env["OF_THE_SHELL"] == os.environ["OF_THE_SHELL"]
    assert ("OF_THE_SHELL" in little, little["ONLY"]) == (False, "1")
    names = ("JOBID", "JOBINDEX", "JOBNAME", "QUEUE", "HOSTS", "MCPU_HOSTS", "DJOB_NUMPROC")
    assert [env[f"LSB_{name}"] for name in names] == [
        job, "0", "run", "normal", f"{HERE} {HERE}", f"{HERE} 2", "2",
    ]  # fmt: skip
    assert env["LS_SUBCWD"] == str(tmp_path)
    assert (tmp_path / f"e.{job}").read_text() == "err\n"
    report = (tmp_path / f"o.{job}").read_text()
    assert f"Subject: Job {job}: <run> in cluster <loomtest> Exited\n" in report
    assert "\nExited with exit code 7.\n" in report
    assert output(tmp_path / f"o.{job}").startswith("out\n\n\nPS:\n\nRead file <")
    assert (shown["STAT"], shown["EXIT_CODE"], shown["EXIT_REASON"]) == ("EXIT", "7", "")
    assert shown["EXEC_HOST"] == f"2*{HERE}"


def test_a_commands_words_are_read_by_a_shell(lsf: Lsf, tmp_path: Path) -> None:
    words = ["printf", "%s:", "a b", "it's", "c;echo", "d"]

    done = lsf.run("bsub", "-K", "-o", "o", *words, cwd=tmp_path)

    assert (done.returncode, done.stderr.splitlines()[0]) == (0, "<<Waiting for dispatch ...>>")
    assert output(tmp_path / "o") == "a b:it's:c:d\n"


def test_states_follow_holds_room_and_signals(lsf: Lsf, tmp_path: Path) -> None:
    sleep = "echo $$ > pid; exec sleep 1000"
    held = submit(lsf, sleep, "-H", "-n", "4", cwd=tmp_path)
    waiting = submit(lsf, "true", "-w", f"ended({held})", cwd=tmp_path)
    seen = [stat(lsf, held), stat(lsf, waiting)]

    lsf.run("bresume", held)
    until(lambda: (tmp_path / "pid").exists())
    crowded = submit(lsf, "true", cwd=tmp_path)
    seen += [stat(lsf, held), stat(lsf, crowded)]
    lsf.run("bstop", held)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "T")
    seen.append(stat(lsf, held))
    lsf.run("bresume", held)
    lsf.preempt(held)
    seen.append(stat(lsf, held))
    lsf.resume(held)
    seen.append(stat(lsf, held))
    lsf.run("bkill", held)
    shown = [ended(lsf, job) for job in (held, crowded, waiting)]

    assert seen == ["PSUSP", "PEND", "RUN", "PEND", "USUSP", "SSUSP", "RUN"]
    assert [each["STAT"] for each in shown] == ["EXIT", "DONE", "DONE"]
    assert (shown[0]["EXIT_CODE"], shown[0]["EXIT_REASON"]) == ("130", TERM_OWNER)
    assert not Path(f"/proc/{pid}").exists()


def test_bkill_is_sigint_sigterm_and_sigkill(lsf: Lsf, tmp_path: Path) -> None:
    script = """
trap 'echo INT >> told' INT
trap 'echo TERM >> told' TERM
echo $$ > pid
while :; do sleep 0.05; done
"""

    job = submit(lsf, f"#!/bin/bash\n{script}", cwd=tmp_path)
    until((tmp_path / "pid").exists)
    lsf.run("bkill", job)
    shown = ended(lsf, job)

    assert (tmp_path / "told").read_text() == "INT\nTERM\n"
    assert (shown["EXIT_CODE"], shown["EXIT_REASON"]) == ("137", TERM_OWNER)


def test_a_tmpdir_is_a_jobs_own_and_removed_under_what_still_uses_it(
    lsf: Lsf, tmp_path: Path
) -> None:
    script = f"""setsid sh -c 'cd $TMPDIR; echo $$ > {tmp_path}/pid.%s; exec sleep 1000' &
echo $TMPDIR > {tmp_path}/partial.%s; mv {tmp_path}/partial.%s {tmp_path}/tmp.%s
until [ -e {tmp_path}/go.%s ]; do sleep 0.01; done"""
    jobs = [submit(lsf, script.replace("%s", name), cwd=tmp_path) for name in "ab"]
    until(lambda: all((tmp_path / f"{file}.{n}").exists() for file in ("tmp", "pid") for n in "ab"))
    one, two = (Path((tmp_path / f"tmp.{name}").read_text().strip()) for name in "ab")
    before = [one.is_dir(), two.is_dir()]

    (tmp_path / "go.a").touch()
    ended(lsf, jobs[0])
    between = [one.exists(), two.is_dir()]
    (tmp_path / "go.b").touch()
    ended(lsf, jobs[1])
    pids = [int((tmp_path / f"pid.{name}").read_text()) for name in "ab"]
    places = [Path(f"/proc/{pid}/cwd").readlink().name for pid in pids]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)

    assert (before, between, two.exists()) == ([True, True], [False, True], False)
    assert one != two
    assert places == [f"{one.name} (deleted)", f"{two.name} (deleted)"]


def test_before_the_run_limit_comes_the_warning_and_at_it_sigusr2(lsf: Lsf, tmp_path: Path) -> None:
    script = """#!/bin/bash
trap 'echo URG >> told' URG
trap 'echo USR2 >> told; exit 0' USR2
while :; do sleep 0.05; done
"""
    options = ["-W", "4", "-wt", "1", "-wa", "URG"]

    polite = submit(lsf, script, *options, cwd=tmp_path)
    deaf = submit(lsf, "#!/bin/bash\ntrap '' USR2 INT TERM\nsleep 1000", "-W", "3", cwd=tmp_path)
    plain = submit(lsf, "sleep 1000", "-W", "0:1", "-o", "o", cwd=tmp_path)
    shown = [ended(lsf, job) for job in (polite, deaf, plain)]

    assert (tmp_path / "told").read_text() == "URG\nUSR2\n"
    assert [(each["STAT"], each["EXIT_CODE"], each["EXIT_REASON"]) for each in shown] == [
        ("DONE", "", ""),
        ("EXIT", "137", TERM_RUNLIMIT),
        ("EXIT", "140", TERM_RUNLIMIT),
    ]
    report = (tmp_path / "o").read_text()
    assert f"\n\n{TERM_RUNLIMIT}.\nExited with exit code 140.\n\n" in report


def test_an_array_is_one_job_of_many(lsf: Lsf, tmp_path: Path) -> None:
    script = "echo $LSB_JOBINDEX $LSB_BATCH_JID\nuntil [ -e go ]; do sleep 0.01; done"

    job = submit(lsf, script, "-J", "many[1-5:2]%2", "-o", "o.%J.%I", cwd=tmp_path)
    until(lambda: [stat(lsf, f"{job}[{index}]") for index in (1, 3)] == ["RUN"] * 2)
    crowded = stat(lsf, f"{job}[5]")
    killed = lsf.run("bkill", f"{job}[1]")
    first = ended(lsf, f"{job}[1]")
    (tmp_path / "go").touch()
    lsf.wait(f"{job}[]")
    table = lsf.run("bjobs", "-noheader", "-o", "id:6 jobindex name:-10 stat delimiter='|'", job)

    assert (crowded, killed.stdout) == ("PEND", f"Job <{job}[1]> is being terminated\n")
    assert (first["JOB_NAME"], first["EXIT_REASON"]) == ("many[1]", TERM_OWNER)
    assert [output(tmp_path / f"o.{job}.{index}") for index in (3, 5)] == [
        f"{index} {job}[{index}]\n" for index in (3, 5)
    ]
    assert table.stdout.splitlines() == [
        f"{job:<6}|{index}|   many[{index}]|{state}"
        for index, state in ((1, "EXIT"), (3, "DONE"), (5, "DONE"))
    ]


def test_a_job_is_requeued_by_hand_and_by_its_exit_code(lsf: Lsf, tmp_path: Path) -> None:
    script = "echo ${LSB_RESTART:-first} >> %s; [ $(wc -l < %s) = 2 ] || %s"
    by_hand = submit(lsf, script.replace("%s", "a", 2) % "sleep 1000", cwd=tmp_path)
    by_code = submit(lsf, script.replace("%s", "b", 2) % "exit 99", "-Q", "99", cwd=tmp_path)
    until((tmp_path / "a").exists)

    done = lsf.run("brequeue", by_hand)
    shown = [ended(lsf, job)["STAT"] for job in (by_hand, by_code)]

    assert (done.returncode, done.stdout) == (0, f"Job <{by_hand}> is being requeued\n")
    assert shown == ["DONE", "DONE"]
    assert [(tmp_path / name).read_text() for name in "ab"] == ["first\nY\n"] * 2
