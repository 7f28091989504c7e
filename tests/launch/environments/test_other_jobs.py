from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CalledProcessError

import pytest

from torchloom.errors import Ambiguous
from torchloom.launch.environments.other_jobs import KEPT_SECONDS, JobsElsewhere
from torchloom.launch.environments.world import World

QSTAT = """Job Id: 12.pbs-01
    Job_Name = train
    job_state = R
    exec_host = x3004c0s1b0n0/0*64+x3005c0s7b0n0/0*64+x3006c0s1
\tb0n0/0*64
    Resource_List.nodect = 3

Job Id: 13.pbs-01
    Job_Name = waiting
    job_state = R
"""


class Shell:
    """Answers like the schedulers' own commands, and keeps what it was asked."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, words: Sequence[str]) -> str:
        self.asked.append(tuple(words))
        if words[0] not in self.answers:
            raise FileNotFoundError(words[0])
        return self.answers[words[0]]


def test_slurm_is_asked_for_the_users_running_jobs() -> None:
    shell = Shell({"squeue": "41|node[01-02]\n7+0|a1\n7+1|b[1-2]\n9|\n"})

    found = JobsElsewhere(shell, "ada").all()

    assert found == (
        World("slurm", ("node01", "node02"), job_id="41", elsewhere=True),
        World("slurm", ("a1", "b1", "b2"), job_id="7", elsewhere=True),
    )
    assert shell.asked[0] == (*("squeue", "-h", "-u", "ada", "-t", "RUNNING", "-o", "%i|%N"),)


def test_pbs_is_asked_and_its_folded_lines_are_joined() -> None:
    shell = Shell({"qselect": "12.pbs-01\n13.pbs-01\n", "qstat": QSTAT})

    found = JobsElsewhere(shell, "ada").all()

    hosts = ("x3004c0s1b0n0", "x3005c0s7b0n0", "x3006c0s1b0n0")
    assert found == (World("pbs", hosts, job_id="12", elsewhere=True),)
    assert ("qstat", "-f", "12.pbs-01", "13.pbs-01") in shell.asked


def test_without_pbs_jobs_qstat_is_not_run() -> None:
    shell = Shell({"qselect": "\n"})

    assert JobsElsewhere(shell, "ada").all() == ()
    assert [words[0] for words in shell.asked] == ["squeue", "qselect", "bjobs"]


def test_lsf_is_asked() -> None:
    shell = Shell({"bjobs": "101|4*hostA:2*hostB\n102|hostC:hostC\nNo job found\n"})

    assert JobsElsewhere(shell, "ada").all() == (
        World("lsf", ("hostA", "hostB"), (4, 2), "101", elsewhere=True),
        World("lsf", ("hostC",), (2,), "102", elsewhere=True),
    )


def test_a_machine_without_a_scheduler_has_no_jobs() -> None:
    assert JobsElsewhere(Shell({}), "ada").one("laptop") is None


def test_a_scheduler_that_does_not_answer_has_no_jobs() -> None:
    def down(words: Sequence[str]) -> str:
        raise CalledProcessError(1, list(words), stderr="cannot contact controller")

    assert JobsElsewhere(down, "ada").all() == ()


def test_the_answer_is_kept_for_half_a_minute() -> None:
    times = iter([0.0, KEPT_SECONDS - 1, KEPT_SECONDS])
    shell = Shell({"squeue": "1|a\n"})
    jobs = JobsElsewhere(shell, "ada", lambda: next(times))

    asked = []
    for _ in range(3):
        jobs.all()
        asked.append([words[0] for words in shell.asked].count("squeue"))

    assert asked == [1, 1, 2]


def test_the_job_of_this_host_is_meant_before_others() -> None:
    jobs = JobsElsewhere(Shell({"squeue": "1|a[1-2]\n2|b[1-2]\n"}), "ada")

    found = jobs.one("b2.example.org")

    assert found == World("slurm", ("b1", "b2"), job_id="2", elsewhere=True)


def test_a_named_job_is_meant() -> None:
    jobs = JobsElsewhere(Shell({"squeue": "1|a\n2|b\n"}), "ada")

    assert jobs.one("login", "1") == World("slurm", ("a",), job_id="1", elsewhere=True)
    assert jobs.one("login", "3") is None


def test_of_several_jobs_none_is_guessed() -> None:
    jobs = JobsElsewhere(Shell({"squeue": "1|a\n2|b[1-2]\n"}), "ada")

    with pytest.raises(Ambiguous) as raised:
        jobs.one("login")

    assert raised.value.candidates == ("1 (slurm, 1 hosts)", "2 (slurm, 2 hosts)")


def test_the_next_command_remembers_what_the_last_one_was_told(tmp_path: Path) -> None:
    asked: list[Sequence[str]] = []
    now = [1000.0]

    def ask(words: Sequence[str]) -> str:
        asked.append(words)
        return "7|n[1-2]\n" if words[0] == "squeue" else ""

    def jobs() -> tuple[World, ...]:
        memory = tmp_path / "jobs.json"
        return JobsElsewhere(ask, "ann", lambda: now[0], memory).all()

    first = jobs()
    count = len(asked)
    now[0] += KEPT_SECONDS - 1
    second = jobs()
    remembered = len(asked) == count
    now[0] += 2
    jobs()

    assert first == second == (World("slurm", ("n1", "n2"), job_id="7", elsewhere=True),)
    assert remembered
    assert len(asked) > count
