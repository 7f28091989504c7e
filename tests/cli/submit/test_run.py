"""`loom run` with its options, and the verbs that go with a job from another shell."""

import json
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.jobs.job_shapes import cold_starts, start_of
from torchloom.launch.records.record import RankRecord, RunRecord

pytestmark = pytest.mark.process

Script = Callable[..., str]

WAITING = """
import time
from pathlib import Path
print("ready", flush=True)
give_up = time.monotonic() + 50
while not Path("go").exists() and time.monotonic() < give_up:
    time.sleep(0.02)
print("gone on", flush=True)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""
COMPONENT = '''
import torchx.specs as specs

def job(word: str, times: int = 1) -> specs.AppDef:
    """Say a word.

    Args:
        word: what is said
        times: how often
    """
    role = specs.Role("speaker", "", entrypoint="echo", args=[word] * times, num_replicas=2)
    return specs.AppDef("speech", [role])
'''


def text(data: bytes) -> str:
    return data.decode()


def started(loom: Any, until: Any, *words: str) -> str:
    """Start a job in the background and return its id once it has said that it is ready."""
    done = loom("run", "-d", *words)
    assert done.returncode == 0, done.stderr
    job = text(done.stdout).strip().rpartition("/")[2]
    until(lambda: "ready" in text(loom("logs", job).stdout), "the job's first word")
    return job


def test_detached_the_handle_and_the_next_commands_are_said(loom: Any, script: Script):
    done = loom("run", "-d", script("pass"))

    (job,) = loom.ids()
    assert text(done.stdout) == f"local://torchx/{job}\n"
    assert text(done.stderr).splitlines() == [
        f"loom: {job} submitted",
        f"  loom logs -f {job}",
        f"  loom show {job}",
        f"  loom stop {job}",
    ]
    assert loom("show", "--wait", job).returncode == 0


@pytest.mark.parametrize(("words", "out"), [(["--wait"], ""), (["--log"], "said\n")])
def test_detached_it_can_be_waited_for_all_the_same(
    words: list[str], out: str, loom: Any, script: Script
):
    done = loom("run", "-d", *words, script("print('said'); raise SystemExit(3)"))

    assert done.returncode == 3
    assert text(done.stdout).splitlines(keepends=True)[1:] == ([out] if out else [])


def test_json_prints_the_job_and_detaches(loom: Any, script: Script):
    done = loom("run", "--json", "--wait", script("pass", "fast.py"))

    job = json.loads(done.stdout)
    assert (job["name"], [job["id"]], done.returncode) == ("fast", loom.ids(), 0)


def test_a_component_prints_its_handle_first_and_its_lines_to_stderr(loom: Any):
    done = loom("run", "utils.echo", "--msg", "hello", "--num_replicas", "2")

    (job,) = loom.ids()
    assert text(done.stdout) == f"local://torchx/{job}\n"
    lines = text(done.stderr).splitlines()
    assert lines[0] == f"loom: {job}: 2 processes"
    assert sorted(lines[1:3]) == ["[echo0]: hello", "[echo1]: hello"]
    assert re.fullmatch(rf"loom: {job} COMPLETED after \d+s", lines[3])


def test_a_cold_start_that_takes_long_says_why_once_and_show_tells_it_of_each_rank(
    loom: Any, script: Script
):
    process = loom.start("run", "-n", "2", script(f"# import torch{WAITING}"))
    said = [next(line for line in process.stderr if b"cold" in line)]
    Path("go").touch()
    said += [line for line in process.communicate()[1].splitlines() if b"cold" in line]

    shown, text_of = json.loads(loom("show", "@", "--json").stdout), text(loom("show", "@").stdout)
    assert said == [b"loom: cold start: LOOM_WARM=0\n"]
    assert [(one["start"], one["cold_because"]) for one in shown["ranks"]] == [
        ("cold", "LOOM_WARM=0")
    ] * 2
    assert "\nstart    cold start: LOOM_WARM=0\n" in text_of
    assert re.findall(r"SUCCEEDED .* (warm|cold) +0 ", text_of) == ["cold"] * 2


def test_of_ranks_that_start_in_different_ways_the_cold_ones_are_counted():
    ways = ("warm", "cold: PYTHONPATH differs", "", "cold: PYTHONPATH differs")
    ranks = tuple(RankRecord("a", 0, i, i, warmth=way) for i, way in enumerate(ways))
    record = RunRecord(
        "a-1", "a", "s", "ada", "host", "/", "2026-01-01T00:00:00+00:00", ranks=ranks
    )

    assert cold_starts(record) == "cold start of 2 of 4 ranks: PYTHONPATH differs"
    assert cold_starts(replace(record, ranks=ranks[:1])) == ""
    assert [start_of(rank)[0] for rank in ranks] == ["warm", "cold", "", "cold"]


@pytest.mark.parametrize("flag", ["--dryrun", "--dry-run"])
def test_a_dry_run_starts_nothing(flag: str, loom: Any, script: Script):
    done = loom("run", flag, "-n", "2", script("pass"), "--lr", "1")

    assert "role train: 1 replica of 2 ranks" in text(done.stdout)
    assert "[0] python train.py --lr 1" in text(done.stdout)
    assert loom.ids() == []


def test_every_field_of_a_request_from_stdin_counts(loom: Any, until: Any):
    Path("tree").mkdir()
    Path("tree/note.txt").write_text("from the tree")
    request = {
        "component_name": "utils.sh",
        "scheduler": "local_cwd",
        "scheduler_args": {"grace": 3},
        "scheduler_cfg": {"log_dir": str(Path("logs").absolute())},
        "dryrun": False,
        "wait": True,
        "log": True,
        "workspace": str(Path("tree").absolute()),
        "parent_run_id": "parent-1",
        "tee_logs": True,
        "component_args": {},
        "component_args_str": ["sh", "-c", "cat note.txt; echo; echo $TORCHX_PARENT_RUN_ID"],
    }

    done = loom("run", "--stdin", stdin=json.dumps(request).encode())

    (job,) = loom.ids()
    assert text(done.stdout) == f"local_cwd://torchx/{job}\n"
    assert "[sh0]: from the tree\n[sh0]: parent-1\n" in text(done.stderr)
    assert Path("logs/torchx", job, "sh/0/stdout.log").exists()


def test_a_request_from_stdin_may_name_arguments_and_be_dry(loom: Any):
    request = {
        "component_name": "utils.echo",
        "scheduler": "local",
        "scheduler_args": None,
        "dryrun": True,
        "component_args": {"msg": "two words", "num_replicas": 3},
    }

    done = loom("run", "--stdin", stdin=json.dumps(request).encode())

    assert "role echo: 3 replicas" in text(done.stdout)
    assert "echo 'two words'" in text(done.stdout)
    assert loom.ids() == []


def test_edits_after_the_submit_do_not_reach_a_job_with_a_workspace(
    loom: Any, script: Script, until: Any
):
    script("word = 'before'", "helper.py")
    script("secret = 1", "private/key.py")
    Path(".torchxignore").write_text("private\n")
    go = Path.home() / "go"
    name = script(
        "import os, time\n"
        "print('ready', flush=True)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
        "import helper\n"
        "print(helper.word, os.path.exists('private'))\n"
    )
    job = started(loom, until, "--workspace", ".", name)

    Path("helper.py").write_text("word = 'after'")
    go.touch()

    assert loom("show", "--wait", job).returncode == 0
    assert text(loom("logs", job).stdout) == "ready\nbefore False\n"


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_a_spec_file_runs(ending: str, loom: Any):
    role = {"name": "a", "image": "", "entrypoint": "echo", "args": ["from", "a", "spec"]}
    spec = {"name": "told", "roles": [role]}
    Path(f"app.{ending}").write_text(json.dumps(spec))  # JSON is YAML

    done = loom("run", f"app.{ending}")

    assert done.returncode == 0, done.stderr
    assert "[a0]: from a spec" in text(done.stderr)
    assert loom.ids()[0].startswith("told-")


def test_a_function_in_a_file_runs_with_its_arguments(loom: Any, script: Script):
    name = script(COMPONENT, "mine.py")

    done = loom("run", f"{name}:job", "--word", "hey", "--times", "2")

    assert done.returncode == 0, done.stderr
    assert "[speaker0]: hey hey\n" in text(done.stderr)


def test_a_command_runs_that_is_no_python(loom: Any):
    done = loom("run", "sh", "-c", "echo $0; exit 4", "word")

    assert (text(done.stdout), done.returncode) == ("word\n", 4)


def test_variables_arrive_as_written(loom: Any, script: Script):
    name = script("import os; print([os.environ[key] for key in 'ABC'])")

    done = loom(
        "run", "-e", "A=${app_id} $$ $HOME", "-e", "B", "--env", "C=", name, env={"B": "b$$b"}
    )

    assert text(done.stdout) == "['${app_id} $$ $HOME', 'b$$b', '']\n"


def test_a_policy_is_kept_with_the_job_or_refused(loom: Any, script: Script):
    job = json.loads(loom("run", "--json", "--policy", "shrink,nan=fail", script("pass")).stdout)
    wrong = loom("run", "--policy", "shrnk", script("pass"))
    both = loom("run", "--policy", "fail", "--max-retries", "2", script("pass"))
    dry = loom("launch", "--policy", "nan=restart", "--dryrun", script("pass"))

    record = json.loads((loom.home / "runs" / job["id"] / "status.json").read_text())
    assert record["policy"] == {"recovery": "shrink", "on_loss": "fail"}
    assert (wrong.returncode, both.returncode) == (2, 2)
    assert "--policy 'shrnk': write one of live, restart, shrink, fail" in text(wrong.stderr)
    assert "never restarts" in text(both.stderr)
    assert "policy: nan=restart" in text(dry.stdout)


def test_a_name_of_ones_own_begins_the_id(loom: Any, script: Script):
    loom("run", "--name", "exp.7", script("pass"))

    assert re.fullmatch(r"exp\.7-\w+", loom.ids()[0])


@pytest.mark.parametrize(("retries", "code"), [(2, 0), (1, 1)])
def test_it_is_started_again_as_often_as_allowed(
    retries: int, code: int, loom: Any, script: Script
):
    name = script(
        "import pathlib\n"
        "counter = pathlib.Path('counter')\n"
        "tries = int(counter.read_text()) + 1 if counter.exists() else 1\n"
        "counter.write_text(str(tries))\n"
        "print('try', tries)\n"
        "raise SystemExit(0 if tries == 3 else 1)\n"
    )

    done = loom("run", "--max-retries", str(retries), name)

    assert done.returncode == code
    assert text(done.stdout).splitlines() == [f"try {n}" for n in range(1, retries + 2)]
    assert json.loads(loom("show", "@", "--json").stdout)["attempt"] == retries + 1


def test_the_config_file_fills_in_what_was_left_out(loom: Any):
    Path(".torchxconfig").write_text(
        "[cli:run]\ncomponent = utils.echo\n[component:utils.echo]\nmsg = configured\n"
        "[local]\ngrace = 3\n"
    )

    done = loom("run")

    assert "[echo0]: configured" in text(done.stderr)
    assert '"grace": 3' in text(loom("plan", "--json").stdout)


def test_a_second_shell_follows_to_the_end(loom: Any, script: Script, until: Any):
    job = started(loom, until, script(WAITING))
    follower = loom.start("logs", "-f", job)
    assert follower.stdout.readline() == b"ready\n"

    Path("go").touch()
    out, err = follower.communicate(timeout=60)

    assert (out, err, follower.returncode) == (b"gone on\n", b"", 0)


def test_json_lines_can_be_followed(loom: Any, script: Script, until: Any):
    job = started(loom, until, script(WAITING))
    follower = loom.start("logs", "-f", "--json", job)
    first = json.loads(follower.stdout.readline())

    Path("go").touch()
    out, _ = follower.communicate(timeout=60)

    assert (first["line"], json.loads(out)["line"]) == ("ready", "gone on")


def test_the_last_lines_come_first_and_then_what_follows(loom: Any, script: Script, until: Any):
    many = "for number in range(50): print(number)\n"
    job = started(loom, until, script(many + WAITING))
    follower = loom.start("logs", "-f", "--last", "2", job)
    assert [follower.stdout.readline() for _ in range(2)] == [b"49\n", b"ready\n"]

    Path("go").touch()
    out, _ = follower.communicate(timeout=60)

    assert out == b"gone on\n"


def test_logs_are_chosen_by_rank_stream_time_and_pattern(loom: Any, script: Script):
    name = script(
        "import datetime, os, sys, time\n"
        "rank = os.environ['RANK']\n"
        "print('early', rank)\n"
        "print('problem', rank, file=sys.stderr)\n"
        "open('up' + rank, 'w').close()\n"
        "while not all(os.path.exists(f'up{each}') for each in range(3)): time.sleep(0.01)\n"
        "time.sleep(0.5)\n"
        "if rank == '0': open('middle', 'w').write(datetime.datetime.now().isoformat())\n"
        "while not os.path.exists('middle'): time.sleep(0.01)\n"
        "time.sleep(0.5)\n"
        "print('late', rank)\n"
    )
    loom("run", "-n", "3", name)
    middle = Path("middle").read_text()

    def logs(*words: str) -> list[str]:
        done = loom("logs", "@", *words)
        assert done.returncode == 0, done.stderr
        return sorted(text(done.stdout).splitlines())

    late = [f"[rank{rank}]: late {rank}" for rank in range(3)]
    assert logs("--ranks", "0,2", "--stream", "stdout", "--regex", "early") == [
        "[rank0]: early 0",
        "[rank2]: early 2",
    ]
    assert logs("--stream", "stderr", "--ranks", "1-2") == [
        "[rank1]: problem 1",
        "[rank2]: problem 2",
    ]
    assert logs("--last", "1", "--stream", "stdout") == late
    assert logs("--since", middle) == late
    assert logs("--until", middle, "--ranks", "1") == ["[rank1]: early 1", "[rank1]: problem 1"]
    assert len(logs("--since", "10m")) == 9
    assert logs("--regex", "^late", "--ranks", "0") == late[:1]


def test_stop_from_another_shell_ends_it_once(loom: Any, script: Script, until: Any):
    job = started(loom, until, script(WAITING))

    first, second = loom("stop", job, "--reason", "enough"), loom("stop", job)

    assert text(first.stdout) == f"{job} CANCELLED\n"
    assert text(second.stdout) == f"{job} had already ended: CANCELLED\n"
    assert (first.returncode, second.returncode) == (0, 0)
    assert json.loads(loom("show", job, "--json").stdout)["reason"] == "enough"
    assert loom.processes() == {}


@pytest.mark.parametrize("words", [["stop", "--now"], ["cancel"]])
def test_at_once_means_without_grace(words: list[str], loom: Any, script: Script, until: Any):
    job = started(loom, until, "-cfg", "grace=600", script(STUBBORN))

    done = loom(*words, job)

    assert text(done.stdout) == f"{job} CANCELLED\n"
    shown = json.loads(loom("show", job, "--json").stdout)
    assert shown["ranks"][0]["exit_code"] == -signal.SIGKILL


def test_a_stop_that_does_not_wait_comes_back_at_once(loom: Any, script: Script, until: Any):
    job = started(loom, until, "-cfg", "grace=600", script(STUBBORN))

    done = loom("stop", "--no-wait", job)

    assert text(done.stdout) == f"{job} RUNNING\n"
    assert text(loom("stop", "--now", job).stdout) == f"{job} CANCELLED\n"


def test_rm_refuses_a_running_job_and_removes_nothing_else_then(
    loom: Any, script: Script, until: Any
):
    loom("run", "--name", "over", script("pass"))
    job = started(loom, until, script(WAITING))

    refused = loom("rm", "over", job)
    kept = loom.ids()
    Path("go").touch()
    loom("show", "--wait", job)
    removed = loom("rm", "over", job, job)

    assert refused.returncode == 2
    assert text(refused.stderr) == f"loom: {job} is RUNNING; stop it first: `loom stop {job}`\n"
    assert len(kept) == 2
    assert len(text(removed.stdout).splitlines()) == 2
    assert loom.ids() == []


def test_left_out_the_only_active_job_is_meant(loom: Any, script: Script, until: Any):
    loom("run", "--name", "over", script("pass"))
    job = started(loom, until, script(WAITING))
    named = text(loom("show").stdout).splitlines()[0].split()
    other = started(loom, until, script(WAITING))

    several = loom("show")
    stopped = loom("stop", other)
    Path("go").touch()

    assert named == ["id", job]
    assert several.returncode == 2
    assert {job, other} <= set(re.findall(r"[\w.]+-\w+", text(several.stderr)))
    assert text(stopped.stdout) == f"{other} CANCELLED\n"
    assert loom("show", "--wait", job).returncode == 0


@pytest.mark.parametrize("words", [["--help"], ["ls"], ["engines"], ["logs", "@"], ["components"]])
def test_a_reader_that_wants_one_line_is_no_error(words: list[str], loom: Any, ended: Any):
    ended("train-a", logs=["line\n" * 100_000])
    process = loom.start(*words)

    process.stdout.readline()
    process.stdout.close()
    process.wait(60)

    assert process.stderr.read() == b""


def test_another_engine_is_submitted_to_followed_and_listed(
    loom: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "site/far-1.dist-info").mkdir(parents=True)
    (tmp_path / "site/far-1.dist-info/METADATA").write_text("Name: far\nVersion: 1\n")
    (tmp_path / "site/far-1.dist-info/entry_points.txt").write_text(
        "[torchloom.schedulers]\nfar = far:create_scheduler\n"
    )
    (tmp_path / "site/far.py").write_text(FAR)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))

    done = loom("run", "-s", "far", "utils.echo", "--num_replicas", "2")
    detached = loom("run", "-s", "far", "--json", "utils.echo")
    listed = loom("ls", "-s", "far")
    planned = loom("plan", "--all", "utils.echo")

    assert (text(done.stdout), done.returncode) == ("far://torchx/echo-1\n", 1)
    assert sorted(text(done.stderr).splitlines()) == [
        *(f"  loom {verb} far://torchx/echo-1" for verb in ("logs -f", "show", "stop")),
        "[echo0]: line of 0",
        "[echo1]: line of 1",
        "loom: far://torchx/echo-1 FAILED",
        "loom: submitted",
    ]
    assert json.loads(detached.stdout) == {
        "id": "echo-1",
        "name": "echo",
        **dict.fromkeys(("state", "job_state", "app_state"), "FAILED"),
        "handle": "far://torchx/echo-1",
        "scheduler": "far",
    }
    assert "far://torchx/echo-1  FAILED  echo" in text(listed.stdout)
    assert [line for line in text(planned.stdout).splitlines() if line.startswith("engine")] == [
        "engine: far",
        "engine: local",
        "engine: lsf",
        "engine: pbs",
        "engine: slurm",
    ]


FAR = """
from torchloom.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler
from torchloom.specs.api import AppDryRunInfo, AppState, runopts

class Far(Scheduler):
    def _run_opts(self):
        return runopts()
    def _submit_dryrun(self, app, cfg):
        return AppDryRunInfo(app, repr)
    def schedule(self, info):
        return f"{info.request.name}-1"
    def describe(self, app_id):
        return DescribeAppResponse(app_id=app_id, state=AppState.FAILED)
    def list(self, cfg=None):
        return [ListAppResponse("echo-1", AppState.FAILED, "far://torchx/echo-1", "echo")]
    def log_iter(self, app_id, role_name, k=0, *rest, **more):
        yield f"line of {k}\\n"
    def _cancel_existing(self, app_id):
        pass

def create_scheduler(session_name, **kwargs):
    return Far("far", session_name)
"""


def test_the_submitters_variables_reach_the_program_and_no_file(
    script: Script, loom: Any, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "canary-7f3a")
    name = script("import os; open('seen', 'w').write(os.environ['API_KEY'])")

    assert loom("run", name).returncode == 0

    assert Path("seen").read_text() == "canary-7f3a"
    files = [path for path in state.rglob("*") if path.is_file()]
    assert [path.name for path in files if b"canary-7f3a" in path.read_bytes()] == []
