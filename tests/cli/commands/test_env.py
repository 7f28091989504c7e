"""`loom env`: variables for a second shell, environments for other hosts."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.main import main

from ..test_json import problems


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be inside a Slurm job, with a secret and a value that is hard to quote."""
    values = {"JOB_ID": "41", "JOB_NODELIST": "n[1-2]", "NNODES": "2", "TASKS_PER_NODE": "2(x2)"}
    for name, value in values.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("NCCL_ODD", "it's\ntwo lines")
    monkeypatch.setenv("HF_TOKEN", "hush")


@pytest.fixture
def small() -> Path:
    """A venv without pip."""
    venv.create("small", symlinks=True)
    return Path("small")


def a_second_shell() -> dict[str, str]:
    """Return the environment of a shell that knows nothing of the job."""
    names = ("PATH", "HOME", "LOOM_HOME", "PYTHONPATH")
    return {name: os.environ[name] for name in names if name in os.environ}


@pytest.mark.process
def test_what_one_shell_saves_another_one_loads(
    job: None, loom: Any, capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    assert main(["env", "save"]) == 0
    told = capsys.readouterr()

    path = state / "envs/slurm-41.json"
    script = 'eval "$(loom env load)"; printf %s "$NCCL_ODD,$SLURM_JOB_ID,${HF_TOKEN-none}"'
    second = a_second_shell()
    done = subprocess.run(["bash", "-c", script], env=second, capture_output=True, text=True)

    assert told.out.endswith(f"variables: {path}\n")
    assert "left out as secrets: HF_TOKEN" in told.err
    assert path.stat().st_mode & 0o777 == 0o600
    assert (done.stdout, done.stderr) == ("it's\ntwo lines,41,none", "")


@pytest.mark.process
def test_a_command_runs_with_what_was_saved(job: None, loom: Any) -> None:
    main(["env", "save", "here.json", "--all"])
    second = a_second_shell()
    words = [loom.path, "env", "shell", "here.json", "--", "sh", "-c", 'echo "$HF_TOKEN"; exit 7']

    done = subprocess.run(words, env=second, capture_output=True, text=True)

    assert (done.returncode, done.stdout, done.stderr) == (7, "hush\n", "")


@pytest.mark.process
def test_without_a_command_it_is_a_shell(job: None, on_terminal: Any) -> None:
    main(["env", "save"])
    terminal = on_terminal("env", "shell", before="import os; os.environ['SHELL'] = '/bin/sh';")

    terminal.send(b"echo job=$SLURM_JOB_ID\r")

    terminal.expect(b"job=41")
    terminal.send(b"exit 3\r")
    assert terminal.wait() == 3


@pytest.mark.needs("tar")
def test_what_is_printed_keeps_to_the_schemas(
    job: None, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*words: str) -> Any:
        capsys.readouterr()
        assert main(["env", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    dest = f"{tmp_path}/dest/env"

    assert problems("env-save", printed("save")) == []
    assert problems("env-load", printed("load")) == []
    assert problems("env-pack", printed("pack", "small")) == []
    pushed = printed("push", "env.tar.gz", "--hosts", "localhost", "--dest", dest)
    assert problems("env-push", pushed) == []
    assert [each["state"] for each in pushed] == ["ready"]
    planned = printed("push", "small", "--hosts", "a,b,c", "--fanout", "1", "--dryrun")
    assert problems("env-push-dryrun", planned) == []
    assert len(planned) == 3


@pytest.mark.process
def test_a_packed_environment_is_pushed_and_works(small: Path, loom: Any, tmp_path: Path) -> None:
    packed = loom("env", "pack", "small", "-o", "x.tar.gz")
    pushed = loom("env", "push", "x.tar.gz", "--hosts", "localhost", "--dest", f"{tmp_path}/far/x")
    again = loom("env", "push", "x.tar.gz", "--hosts", "localhost", "--dest", f"{tmp_path}/far/x")
    small.rename("away")

    words = [f"{tmp_path}/far/x/bin/python", "-c", "import sys; print(sys.prefix)"]
    done = subprocess.run(words, capture_output=True, text=True)

    assert b"every host needs " in packed.stderr
    assert pushed.stdout.decode() == f"1 of 1 hosts have {tmp_path}/far/x\n"
    assert again.stdout.decode().endswith(", 1 had it already\n")
    assert done.stdout == f"{tmp_path}/far/x\n"


@pytest.mark.process
def test_a_host_that_fails_is_named_and_the_exit_code_says_so(
    small: Path, loom: Any, tmp_path: Path
) -> None:
    hosts = "localhost,nowhere.invalid"
    dest = f"{tmp_path}/far/x"

    done = loom(
        "env", "push", "small", "--hosts", hosts, "--dest", dest, "--ssh", "sh -c 'exit 255'"
    )

    assert done.returncode == 1
    assert done.stdout.decode() == (
        f"failed  nowhere.invalid: exit code 255, without output\n1 of 2 hosts have {dest}\n"
    )


@pytest.mark.process
def test_packing_shows_its_progress_on_a_terminal(small: Path, on_terminal: Any) -> None:
    terminal = on_terminal("env", "pack", "small")

    assert terminal.wait() == 0

    assert b"packing small: 100 % of " in terminal.screen
    assert b"\r\x1b[Kpacked " in terminal.screen


def test_the_allocations_hosts_are_the_default(
    job: None, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["env", "push", "small", "--dryrun"]) == 0

    assert capsys.readouterr().out == "here\n  n1\n  n2\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["save", "/proc/none/x"], "name another FILE"),
        (["load"], "`loom env save` inside the job writes one"),
        (["load", "no.json"], "No such file or directory; write it with `loom env save`"),
        (["load", "own.json", "--shell", "fihs"], "did you mean 'fish'?; write one of bash"),
        (["shell", "own.json", "--", "no-such-program"], "cannot start 'no-such-program'"),
        (
            ["pack", "work"],
            "is not a Python environment: no such folder; name a venv or conda folder",
        ),
        (["pack", "small", "-o", "/proc/none/env.tar.gz"], "cannot pack: /proc/none/"),
        (["push", "small"], "no hosts: pass --hosts a,b,c or --hostfile FILE"),
        (["push", "small", "--hosts", ","], "no hosts: pass --hosts a,b,c"),
        (["push", "small", "--hosts=-oProxyCommand=x"], "is not a host name"),
        (["push", "small", "--hostfile", "none"], "pass --hostfile FILE"),
        (["push", "small", "--hosts", "a", "--hostfile", "f"], "exclude each other"),
        (["push", "none.tar.gz", "--hosts", "localhost"], "name an archive of `loom env pack`"),
        (["push", "small", "--hosts", "a", "--dest", "rel ative"], "write a full path"),
        (["push", "small", "--hosts", "a", "--ssh", ""], "LOOM_SSH"),
        (["pusj"], "no env command 'pusj'; did you mean 'push'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_told_with_its_remedy(
    words: list[str], message: str, small: Path, capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    main(["env", "save", "own.json"])
    capsys.readouterr()

    code = main(["env", *words])

    told = capsys.readouterr()
    assert code in (1, 2)
    assert message in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""


def test_the_python_of_the_tests_is_an_environment_that_can_be_packed() -> None:
    from torchloom.envs.archive import find_prefix

    if sys.prefix == sys.base_prefix:
        pytest.skip("the tests do not run in an environment")
    assert find_prefix(Path(sys.prefix)).path == Path(sys.prefix)
