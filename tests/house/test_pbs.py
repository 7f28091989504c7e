import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..harness.cluster.pbs import Pbs
from ..harness.home import until

pytestmark = pytest.mark.process
HERE = socket.gethostname()
JOB = "echo hello\n"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pbs]:
    """Keep one PBS on this machine for all tests of the file."""
    with Pbs(tmp_path_factory.mktemp("pbs"), settings={"kill_delay": 1.0}) as pbs:
        yield pbs


@pytest.fixture
def pbs(system: Pbs) -> Iterator[Pbs]:
    """Give it without jobs of other tests."""
    yield system
    system.cancel_all()


def submit(pbs: Pbs, script: str, *options: str, cwd: Path | None = None) -> str:
    """Submit a script; return the job's number with its brackets, without the server."""
    done = pbs.run("qsub", *options, cwd=cwd, stdin=script)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f".{pbs.server}\n")
    return done.stdout.partition(".")[0]


def show(pbs: Pbs, job: str) -> dict[str, Any]:
    """Return what `qstat` knows of a job, in the history too."""
    done = pbs.run("qstat", "-x", "-f", "-F", "json", job)
    assert (done.returncode, done.stderr) == (0, "")
    shown: dict[str, Any] = json.loads(done.stdout)["Jobs"][f"{job}.{pbs.server}"]
    return shown


def lives(pid: int) -> bool:
    """Tell whether a process runs; one that waits to be buried does not."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def state(pbs: Pbs, job: str) -> str:
    """Return the letter of the job's state."""
    letter: str = show(pbs, job)["job_state"]
    return letter


def ended(pbs: Pbs, job: str) -> dict[str, Any]:
    """Come back when the job is in the history; return what is known of it."""
    pbs.wait(job)
    return show(pbs, job)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["-Z"], 2, "qsub: invalid option -- 'Z'\nusage: qsub "),
        (["-N"], 2, "qsub: option requires an argument -- 'N'\nusage: qsub "),
        (["-N", "a b"], 2, "qsub: illegal -N value\n"),
        (["-N", "größe"], 2, "qsub: illegal -N value\n"),
        (["-N", "a" * 237], 2, "qsub: Job name is too long \n"),
        (["-j", "both"], 2, "qsub: illegal -j value\n"),
        (["-k", "x"], 2, "qsub: illegal -k value\n"),
        (["-p", "5000"], 2, "qsub: illegal -p value\n"),
        (["-r", "maybe"], 2, "qsub: illegal -r value\n"),
        (["-J", "3-1"], 2, "qsub: illegal -J value\n"),
        (["-J", "1-2", "-r", "n"], 2, "qsub:  cannot submit non-rerunable Array Job\n"),
        (["-a", "9999"], 2, "qsub: illegal -a value\n"),
        (["-l", "select"], 2, "qsub: illegal -l value\n"),
        (["-W", "block"], 2, "qsub: illegal -W value\n"),
        (["-W", "tolerate_node_failures=some"], 2, "qsub: illegal -W value\n"),
        (["-W", "colour=red"], 154, "qsub: Undefined attribute  colour\n"),
        (["-W", "depend=afterok:99"], 206, "qsub: Invalid Job Dependency\n"),
        (["-q", "nowhere"], 170, "qsub: Unknown queue\n"),
        (["-v", "NO_SUCH_NAME"], 1, "qsub: cannot send environment with the job\n"),
        (["-l", "tea=1"], 187, "qsub: Unknown resource Resource_List.tea\n"),
        (["-l", "select=1:tea=1"], 187, "qsub: Unknown resource: tea\n"),
        (
            ["-l", "walltime=soon"],
            166,
            "qsub: Illegal attribute or resource value Resource_List.walltime\n",
        ),
        (
            ["-l", "select=0"],
            166,
            "qsub: Illegal attribute or resource value Resource_List.select\n",
        ),
        (
            ["-l", "select=1:walltime=9"],
            4,
            'qsub: Resource invalid in "select" specification: walltime\n',
        ),
        (
            ["-l", "select=1,ncpus=2"],
            5,
            'qsub: "-lresource=" cannot be used with "select" or "place", resource is: ncpus\n',
        ),
        (["-l", "place=scatter"], 7, 'qsub: Cannot have "place" without "select"\n'),
        (["-I"], 2, "qsub: -I is not done by this fake of PBS\n"),
        (["/no/such/script"], 1, "qsub: script file:: No such file or directory\n"),
        (["one", "two"], 2, "usage: qsub "),
    ],
)
def test_qsub_refuses_in_the_words_of_pbs(
    system: Pbs, options: list[str], code: int, said: str
) -> None:
    done = system.run("qsub", *options, stdin=JOB)

    assert (done.returncode, done.stdout, done.stderr[: len(said)]) == (code, "", said)


def test_a_bad_directive_is_named_and_one_behind_a_command_is_none(pbs: Pbs) -> None:
    unknown = pbs.run("qsub", stdin="#!/bin/sh\n#PBS -Z 1\n" + JOB)
    operand = pbs.run("qsub", stdin="#PBS walltime=1\n" + JOB)
    illegal = pbs.run("qsub", stdin="#PBS -j 'o e'\n" + JOB)
    late = submit(pbs, "true\n#PBS -Z 1\n", "-h")

    assert [
        (done.returncode, done.stdout, done.stderr) for done in (unknown, operand, illegal)
    ] == [
        (1, "", "qsub: invalid option -- 'Z'\nqsub: directive error: -Z 1 \n"),
        (1, "", "qsub: directive error: walltime=1 \n"),
        (1, "", "qsub: illegal -j value\nqsub: directive error: -j o e \n"),
    ]
    assert state(pbs, late) == "H"


def test_what_is_not_there_has_pbs_words_and_codes(pbs: Pbs) -> None:
    job = submit(pbs, JOB, "-h")
    pbs.run("qdel", job)
    name = f"{job}.{pbs.server}"
    history = "use -x or -H to obtain historical job information"

    said = [
        (done.returncode, done.stderr.replace(name, "JOB"))
        for done in (
            pbs.run("qstat", job),
            pbs.run("qstat", "999"),
            pbs.run("qstat", "nowhere"),
            pbs.run("qstat", "-F", "json"),
            pbs.run("qdel", job),
            pbs.run("qdel", "999"),
            pbs.run("qdel", "x"),
            pbs.run("qrerun", job),
            pbs.run("qsig", "-s", "NOTHING", "999"),
            pbs.run("pbsnodes", "nowhere"),
            pbs.run("pbs_tmrsh", HERE, "true"),
        )
    ]

    said[3] = (said[3][0], said[3][1].partition("\n")[0])
    said[10] = (said[10][0], said[10][1].rpartition("/")[2])
    assert said == [
        (35, f"qstat: JOB Job has finished, {history}\n"),
        (153, f"qstat: Unknown Job Id 999.{HERE}\n"),
        (170, "qstat: Unknown queue nowhere\n"),
        (2, "qstat: conflicting options."),
        (35, "qdel: Job has finished JOB\n"),
        (153, f"qdel: Unknown Job Id 999.{HERE}\n"),
        (1, "qdel: illegally formed job identifier: x\n"),
        (35, "qrerun: Job has finished JOB\n"),
        (153, f"qsig: Unknown Job Id 999.{HERE}\n"),
        (1, "Node: nowhere,  Error: Unknown node \n"),
        (255, "pbs_tmrsh: not executing under PBS\n"),
    ]


def test_a_job_gets_what_pbs_gives_and_nothing_of_the_shell(
    pbs: Pbs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SHELL", "x")
    monkeypatch.setenv("WANTED", "a,b 'c' \\ \"d\"\nnew line: größe")
    script = f"""#!/bin/bash
#PBS -N first -l select=1:ncpus=1,walltime=1:00:00
#PBS -v "GIVEN='1,2'",WANTED -j oe
env -0 > {tmp_path}/env
cat $PBS_NODEFILE > {tmp_path}/nodes
pwd
echo error >&2
exit 7
"""

    job = submit(pbs, script, "-l", "select=1:ncpus=2:mpiprocs=2", "-N", "run", cwd=tmp_path)
    shown = ended(pbs, job)

    said = (tmp_path / "env").read_text().split("\0")[:-1]
    env = dict(line.partition("=")[::2] for line in said)
    assert "SECRET_OF_THE_SHELL" not in env
    assert (env["WANTED"], env["GIVEN"]) == (os.environ["WANTED"], "1,2")
    assert [env[f"PBS_{name}"] for name in ("JOBID", "JOBNAME", "ENVIRONMENT", "QUEUE")] == [
        f"{job}.{HERE}", "run", "PBS_BATCH", "workq",
    ]  # fmt: skip
    assert (env["PBS_O_WORKDIR"], env["PBS_O_HOST"]) == (str(tmp_path), HERE)
    assert (tmp_path / "nodes").read_text() == f"{HERE}\n" * 2
    assert (tmp_path / f"run.o{job}").read_text() == f"{Path.home()}\nerror\n"
    assert not (tmp_path / f"run.e{job}").exists()
    assert (shown["Exit_status"], shown["substate"], shown["run_count"]) == (7, 93, 1)
    assert shown["Resource_List"]["walltime"] == "01:00:00"
    assert shown["exec_host"] == f"{HERE}/0*2"


def test_output_arrives_at_the_end_or_is_written_in_place(pbs: Pbs, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo here; touch {tmp_path}/$PBS_JOBNAME; until [ -e {go} ]; do sleep 0.01; done"

    late = submit(pbs, script, "-N", "late", cwd=tmp_path)
    direct = submit(pbs, script, "-N", "direct", "-k", "oed", cwd=tmp_path)
    until(lambda: (tmp_path / "late").exists() and (tmp_path / "direct").exists())
    during = sorted(path.name for path in tmp_path.glob("*.[oe]*"))
    seen = (tmp_path / f"direct.o{direct}").read_text()
    go.touch()
    ended(pbs, late)

    assert (during, seen) == ([f"direct.e{direct}", f"direct.o{direct}"], "here\n")
    assert (tmp_path / f"late.o{late}").read_text() == "here\n"


def test_states_follow_holds_room_and_signals(pbs: Pbs, tmp_path: Path) -> None:
    sleep = f"#PBS -l ncpus=4\necho $$ > {tmp_path}/pid; exec sleep 1000"
    held = submit(pbs, sleep, "-h", cwd=tmp_path)
    waiting = submit(pbs, JOB, "-l", "ncpus=1", "-W", f"depend=afterany:{held}", cwd=tmp_path)
    seen = [state(pbs, held), state(pbs, waiting)]
    mine, nobodys = (
        pbs.run("qselect", "-u", "root,me").stdout,
        pbs.run("qselect", "-u", "me").stdout,
    )

    pbs.run("qrls", held)
    until(lambda: (tmp_path / "pid").exists())
    crowded = submit(pbs, JOB, "-l", "ncpus=1", cwd=tmp_path)
    seen += [state(pbs, held), state(pbs, crowded)]
    pbs.run("qsig", "-s", "suspend", held)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "T")
    seen.append(state(pbs, held))
    pbs.run("qsig", "-s", "resume", held)
    seen.append(state(pbs, held))
    deleted = pbs.run("qdel", held)
    shown = [ended(pbs, job) for job in (held, crowded, waiting)]

    assert seen == ["H", "H", "R", "Q", "S", "R"]
    assert (mine.split(), nobodys) == ([f"{held}.{HERE}", f"{waiting}.{HERE}"], "")
    assert pbs.run("qselect").stdout == ""
    assert (deleted.returncode, deleted.stdout, deleted.stderr) == (0, "", "")
    assert [each["Exit_status"] for each in shown] == [256 + signal.SIGTERM, 0, 0]
    assert (shown[0]["substate"], shown[0]["comment"].endswith(" and terminated")) == (91, True)
    assert not lives(pid)


def test_a_walltime_that_is_over_is_sigterm_and_then_sigkill(pbs: Pbs, tmp_path: Path) -> None:
    polite = f"trap 'echo saved > {tmp_path}/saved; exit 0' TERM\nwhile :; do sleep 0.05; done"
    stubborn = f"trap '' TERM\necho $$ > {tmp_path}/pid\nwhile :; do sleep 0.05; done"

    jobs = [submit(pbs, text, "-l", "walltime=3", cwd=tmp_path) for text in (polite, stubborn)]
    shown = [ended(pbs, job) for job in jobs]

    assert (tmp_path / "saved").read_text() == "saved\n"
    assert not lives(int((tmp_path / "pid").read_text()))
    assert [each["Exit_status"] for each in shown] == [-29, -29]
    assert [each["comment"].partition(") ")[2] for each in shown] == [
        "and exceeded resource walltime"
    ] * 2
    said = (tmp_path / f"STDIN.e{jobs[0]}").read_text().splitlines()
    assert said[0].startswith("=>> PBS: job killed: walltime ")
    assert said[0].endswith(" exceeded limit 3")


def test_an_array_is_one_job_of_many(pbs: Pbs, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo $PBS_ARRAY_INDEX $PBS_ARRAY_ID\nuntil [ -e {go} ]; do sleep 0.01; done"

    job = submit(pbs, script, "-J", "1-5:2%2", "-N", "many", cwd=tmp_path)
    until(lambda: show(pbs, job)["array_state_count"].startswith("Queued:1 Running:2 "))
    seen = (state(pbs, job), show(pbs, job)["array_indices_remaining"])
    one = job.replace("[]", "[1]")
    pbs.run("qdel", one)
    until(lambda: state(pbs, one) == "X")
    go.touch()
    shown = ended(pbs, job)
    listed = pbs.run("qstat", "-x", "-t").stdout

    assert (job, seen) == (f"{job[:-2]}[]", ("B", 5))
    for index in (3, 5):
        text = (tmp_path / f"many.o{job[:-2]}.{index}").read_text()
        assert text == f"{index} {job}.{HERE}\n"
    assert (shown["job_state"], shown["array_state_count"].split()[3]) == ("F", "Expired:3")
    assert [line.split()[0] for line in listed.splitlines()[2:]] == [
        f"{job[:-2]}[{index}].{HERE}" for index in ("", 1, 3, 5)
    ]


def test_a_rerun_job_starts_over_under_its_number(pbs: Pbs, tmp_path: Path) -> None:
    script = f"echo run >> {tmp_path}/runs; [ $(wc -l < {tmp_path}/runs) = 2 ] || sleep 1000"
    fixed = submit(pbs, "sleep 1000", "-r", "n", cwd=tmp_path)
    job = submit(pbs, script, cwd=tmp_path)
    until(lambda: (tmp_path / "runs").exists())

    done = pbs.run("qrerun", job)
    refused = pbs.run("qrerun", fixed)
    shown = ended(pbs, job)

    assert (done.returncode, shown["Exit_status"], shown["run_count"]) == (0, 0, 2)
    assert (refused.returncode, refused.stderr) == (
        190,
        f"qrerun: job is not rerunnable {fixed}.{HERE}\n",
    )


def test_what_waits_in_vain_is_deleted(pbs: Pbs, tmp_path: Path) -> None:
    failing = submit(pbs, "exit 1", "-h", cwd=tmp_path)
    after = [
        submit(pbs, JOB, "-W", f"depend={kind}:{failing}", cwd=tmp_path)
        for kind in ("afterok", "afternotok")
    ]

    pbs.run("qrls", failing)
    shown = [ended(pbs, job) for job in after]

    assert [each.get("Exit_status") for each in shown] == [None, 0]


def test_a_blocking_qsub_exits_as_its_job(pbs: Pbs, tmp_path: Path) -> None:
    done = pbs.run("qsub", "-W", "block=true", "--", "/bin/sh", "-c", "exit 5", cwd=tmp_path)

    assert (done.returncode, done.stderr) == (5, "")


def test_a_shell_is_above_the_script_and_its_end_is_the_jobs(pbs: Pbs, tmp_path: Path) -> None:
    script = f"""trap 'touch {tmp_path}/told; sleep 1000' TERM
echo $$ $PPID $TMPDIR > {tmp_path}/partial; mv {tmp_path}/partial {tmp_path}/top
while :; do sleep 0.05; done"""

    job = submit(pbs, script, cwd=tmp_path)
    until((tmp_path / "top").exists)
    mine, above, scratch = (tmp_path / "top").read_text().split()
    is_there = Path(scratch).is_dir()
    pbs.run("qsig", "-s", "SIGTERM", job)
    shown = ended(pbs, job)

    assert (above != str(os.getpid()), is_there, Path(scratch).exists()) == (True, True, False)
    assert shown["Exit_status"] == 256 + signal.SIGTERM
    assert not lives(int(mine))
    assert not lives(int(above))


def test_a_script_named_by_its_own_path_is_the_top_and_has_its_time(
    pbs: Pbs, tmp_path: Path
) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        f"""#!/bin/bash
trap 'touch {tmp_path}/told; exit 3' TERM
touch {tmp_path}/runs
while :; do sleep 0.05; done"""
    )
    script.chmod(0o755)

    job = submit(pbs, script.read_text(), "-S", str(script), cwd=tmp_path)
    until((tmp_path / "runs").exists)
    pbs.run("qsig", "-s", "SIGTERM", job)
    shown = ended(pbs, job)

    assert (shown["Exit_status"], (tmp_path / "told").exists()) == (3, True)


def test_a_session_of_its_own_outlives_the_job(pbs: Pbs, tmp_path: Path) -> None:
    script = f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000' & sleep 0.1"

    job = submit(pbs, script, cwd=tmp_path)
    ended(pbs, job)
    pid = int((tmp_path / "pid").read_text())

    assert lives(pid)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("short", "count"), [(1.0, 1), (0.0, 2)])
def test_json_has_all_jobs_that_are_named_or_the_first(
    tmp_path: Path, short: float, count: int
) -> None:
    with Pbs(tmp_path, settings={"short_json": short}) as pbs:
        jobs = [submit(pbs, "true", "-h", cwd=tmp_path) for _ in range(2)]

        done = pbs.run("qstat", "-f", "-F", "json", *jobs)

        named = [f"{job}.{HERE}" for job in jobs]
        assert (done.returncode, list(json.loads(done.stdout)["Jobs"])) == (0, named[:count])
