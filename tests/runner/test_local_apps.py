"""Apps on this machine through the Runner: real processes, seen from outside."""

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from torchloom.errors import NotFound, UserError
from torchloom.runner import Runner, get_runner
from torchloom.schedulers.api import ListAppResponse, Stream
from torchloom.specs.api import (
    AppDef,
    AppHandle,
    AppState,
    AppStatus,
    AppStatusError,
    ReplicaStatus,
    RetryPolicy,
    Role,
    RoleStatus,
    Workspace,
    parse_app_handle,
)
from torchloom.workspace.dir_workspace import WorkspaceNotCopied

from ..harness.home import app_ids, processes_of, python, until

pytestmark = pytest.mark.process

FOREVER = "while :; do sleep 0.05; done"
QUICK = {"grace": 1}


@pytest.fixture
def runner(home: Path) -> Iterator[Runner]:
    """A runner whose apps are all ended with the test, however that went."""
    with get_runner() as found:
        yield found
        handles = [f"local://torchx/{app_id}" for app_id in app_ids(home) if app_id[0] != "."]
        for handle in handles:
            found.cancel(handle)
        for handle in handles:
            found.wait(handle)
            until(lambda handle=handle: not processes_of(app_id_of(handle)))


def app_id_of(handle: AppHandle) -> str:
    return parse_app_handle(handle).app_id


def bash(script: str, name: str = "a", **fields: Any) -> Role:
    """Return a role that runs a bash script; its dollars are bash's."""
    words = script.replace("$", "$$")
    return Role(name, "", entrypoint="bash", args=["-c", words], **fields)


def app(*roles: Role) -> AppDef:
    return AppDef("app", list(roles))


def ended(runner: Runner, handle: AppHandle) -> AppStatus:
    status = runner.wait(handle)
    assert status is not None
    return status


def text(runner: Runner, handle: AppHandle, role: str = "a", k: int = 0, **options: Any) -> str:
    return "".join(runner.log_lines(handle, role, k, **options))


def waiting_for(path: Path) -> str:
    return f"until [ -e {path} ]; do sleep 0.01; done"


def is_running(runner: Runner, handle: AppHandle) -> bool:
    status = runner.status(handle)
    return status is not None and status.state is AppState.RUNNING


# Running.


def test_an_app_that_ends_well_has_succeeded(runner: Runner) -> None:
    handle = runner.run(app(bash("echo hello")), "local")

    assert handle.startswith("local://torchx/app-")
    host = os.uname().nodename
    replica = ReplicaStatus(0, AppState.SUCCEEDED, "a", host)
    assert ended(runner, handle) == AppStatus(
        AppState.SUCCEEDED, num_restarts=0, roles=[RoleStatus("a", [replica])]
    )
    assert text(runner, handle) == "hello\n"


def test_an_app_that_ends_badly_has_failed_and_says_how(runner: Runner) -> None:
    handle = runner.run(app(bash("exit 3")), "local")

    status = ended(runner, handle)

    assert (status.state, status.msg) == (AppState.FAILED, "exit_code_3_a_0")
    with pytest.raises(AppStatusError):
        status.raise_for_status()


def test_a_program_that_does_not_exist_is_a_failure_with_its_name(runner: Runner) -> None:
    asked = app(Role("a", "", entrypoint="no-such-program"), bash(FOREVER, "b"))

    status = ended(runner, runner.run(asked, "local", QUICK))

    assert (status.state, status.msg) == (
        AppState.FAILED,
        "cannot_start: no-such-program: No such file or directory",
    )


def test_a_process_finds_the_working_directory_the_variables_and_the_macros(
    runner: Runner, tmp_path: Path
) -> None:
    asked = app(bash('echo "$PWD $A $LOOM_JOB $TORCHX_JOB_ID $WHO"', env={"A": "$$x"}))
    asked.roles[0].env["WHO"] = "${replica_id}"

    handle = runner.run(asked, "local")

    ended(runner, handle)
    assert text(runner, handle) == f"{tmp_path}/project $x {app_id_of(handle)} {handle} 0\n"


def test_an_app_is_running_while_a_process_of_it_is(runner: Runner, tmp_path: Path) -> None:
    handle = runner.run(app(bash(waiting_for(tmp_path / "go"))), "local")
    until(lambda: is_running(runner, handle))
    assert processes_of(app_id_of(handle))

    (tmp_path / "go").touch()

    assert ended(runner, handle).state is AppState.SUCCEEDED


def test_components_run_with_words_or_a_mapping(runner: Runner) -> None:
    handles = [
        runner.run_component("utils.echo", ["--msg", "words"], "local"),
        runner.run_component("utils.echo", {"msg": "mapping", "num_replicas": 2}, "local_cwd"),
    ]

    states = [ended(runner, handle).state for handle in handles]

    assert states == [AppState.SUCCEEDED] * 2
    assert handles[1].startswith("local_cwd://torchx/")
    assert text(runner, handles[0], "echo") == "words\n"
    assert [text(runner, handles[1], "echo", k) for k in (0, 1)] == ["mapping\n"] * 2


def test_a_workspace_is_copied_before_the_app_starts(runner: Runner, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.sh").write_text("echo from $PWD")
    (source / ".loomignore").write_text("secret\n")
    (source / "secret").write_text("x")
    asked = app(bash("ls; . ./train.sh", workspace=Workspace({str(source): ""})))

    handle = runner.run(asked, "local")

    ended(runner, handle)
    place = tmp_path / "loom/runs" / app_id_of(handle) / "workspace/a"
    assert text(runner, handle) == f"train.sh\nfrom {place}\n"


def test_a_workspace_that_cannot_be_copied_leaves_nothing(
    runner: Runner, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "plain").write_text("x")
    places = {str(tmp_path / "plain"): "", f"{tmp_path}/project": "plain/below"}
    (tmp_path / "project/file").write_text("x")

    with pytest.raises(WorkspaceNotCopied, match="cannot copy workspace"):
        runner.run(app(bash("echo", workspace=Workspace(places))), "local")

    assert app_ids(home) == []


# Waiting.


def test_wait_comes_back_at_the_end_also_for_a_runner_that_did_not_start_the_app(
    runner: Runner, tmp_path: Path
) -> None:
    ends = f"{waiting_for(tmp_path / 'go')}; date +%s.%N > {tmp_path}/end"
    handle = runner.run(app(bash(ends)), "local")
    (tmp_path / "go").touch()

    status = get_runner().wait(handle, wait_interval=600)

    late = time.time() - float((tmp_path / "end").read_text())
    assert status is not None
    assert status.state is AppState.SUCCEEDED
    assert late < 5  # and not a wait_interval


def test_after_wait_nothing_of_the_app_runs(runner: Runner) -> None:
    stubborn = f"(trap '' TERM; {FOREVER}) & echo started"
    handle = runner.run(app(bash(stubborn)), "local", {"grace": 0})

    ended(runner, handle)

    until(lambda: not processes_of(app_id_of(handle)))


# Outliving.


def test_closing_the_runner_ends_no_app(runner: Runner, tmp_path: Path) -> None:
    with get_runner() as other:
        handle = other.run(app(bash(waiting_for(tmp_path / "go"))), "local", QUICK)
        until(lambda: is_running(runner, handle))

    (tmp_path / "go").touch()

    assert ended(runner, handle).state is AppState.SUCCEEDED


def test_an_app_outlives_the_process_that_submitted_it(runner: Runner, tmp_path: Path) -> None:
    submit = (
        "import sys; from torchloom.runner import get_runner; "
        "print(get_runner().run_component('utils.sh', sys.argv[1:], 'local'))"
    )

    done = python(submit, "bash", "-c", f"{waiting_for(tmp_path / 'go')}; echo done")

    assert (done.returncode, done.stderr) == (0, "")
    handle = done.stdout.strip()
    status = runner.status(handle)
    assert status is not None
    assert not status.is_terminal()
    (tmp_path / "go").touch()
    assert ended(runner, handle).state is AppState.SUCCEEDED
    assert text(runner, handle, "sh") == "done\n"


# Ending.


def test_cancel_ends_the_app_and_what_it_started(runner: Runner) -> None:
    handle = runner.run(app(bash(f"({FOREVER}) & {FOREVER}")), "local", QUICK)
    until(lambda: len(processes_of(app_id_of(handle))) > 3)

    runner.cancel(handle)

    status = ended(runner, handle)
    assert (status.state, status.msg) == (AppState.CANCELLED, "cancelled_by_user")
    until(lambda: not processes_of(app_id_of(handle)))


def test_a_program_may_end_in_its_own_way_when_told_to(runner: Runner) -> None:
    polite = "trap 'echo bye; exit 0' TERM; echo up; " + FOREVER
    handle = runner.run(app(bash(polite)), "local")
    until(lambda: text(runner, handle) == "up\n")

    runner.stop(handle)

    assert ended(runner, handle).state is AppState.CANCELLED
    assert text(runner, handle, streams=Stream.STDOUT) == "up\nbye\n"


def test_cancel_of_an_app_that_is_over_changes_nothing(runner: Runner) -> None:
    handle = runner.run(app(bash("true")), "local")
    before = ended(runner, handle)

    runner.cancel(handle)

    assert runner.status(handle) == before


def test_delete_forgets_an_app_that_is_over_and_refuses_one_that_runs(
    runner: Runner, home: Path
) -> None:
    handle = runner.run(app(bash(FOREVER)), "local", QUICK)

    with pytest.raises(UserError, match=r"is (RUNNING|SUBMITTED); stop it first"):
        runner.delete(handle)
    runner.cancel(handle)
    ended(runner, handle)
    runner.delete(handle)

    assert (runner.status(handle), runner.list("local")) == (None, [])
    assert app_ids(home) in ([], [".ended.jsonl"])


# Asking.


def test_an_app_is_described_as_it_was_submitted(runner: Runner) -> None:
    role = bash("true", num_replicas=2, max_retries=1, metadata={"x": [1]})
    handle = runner.run(AppDef("app", [role], {"team": "x"}), "local")

    found = get_runner().describe(handle)

    role.env["TORCHX_JOB_ID"] = "local://torchx/${app_id}"
    assert found == AppDef(app_id_of(handle), [role], {"team": "x"})


def test_apps_are_listed_newest_first_under_the_name_of_the_engine(runner: Runner) -> None:
    handles = [runner.run(app(bash("true")), engine) for engine in ("local", "local_cwd")]
    for handle in handles:
        ended(runner, handle)

    ids = [app_id_of(handle) for handle in handles]
    assert runner.list("local") == [
        ListAppResponse(app_id, AppState.SUCCEEDED, f"local://torchx/{app_id}", "app")
        for app_id in reversed(ids)
    ]
    assert runner.list("local_cwd")[0].app_handle == handles[1]


# Reading.


@pytest.fixture
def talker(runner: Runner) -> AppHandle:
    """An app of two roles that has printed something and ended."""
    both = "echo out $REPLICA; echo err >&2; echo more"
    asked = app(
        bash(both, num_replicas=2, env={"REPLICA": "${replica_id}"}), bash("echo b", "other")
    )
    handle = runner.run(asked, "local")
    ended(runner, handle)
    return handle


def test_logs_are_read_by_role_and_replica_by_position(runner: Runner, talker: AppHandle) -> None:
    assert list(runner.log_lines(talker, "other", 0)) == ["b\n"]
    assert list(runner.log_lines(talker, "a", 1, "^out")) == ["out 1\n"]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (Stream.STDOUT, ["out 0\n", "more\n"]),
        (Stream.STDERR, ["err\n"]),
        (Stream.COMBINED, ["err\n", "more\n", "out 0\n"]),
        (None, ["err\n", "more\n", "out 0\n"]),
    ],
)
def test_each_stream_can_be_read(
    runner: Runner, talker: AppHandle, stream: Stream | None, expected: list[str]
) -> None:
    found = list(runner.log_lines(talker, "a", 0, streams=stream))

    assert (found if stream is Stream.STDOUT else sorted(found)) == expected


def test_logs_are_read_by_time(runner: Runner, talker: AppHandle) -> None:
    now = datetime.now(UTC) + timedelta(seconds=1)
    ago = now - timedelta(hours=1)

    assert text(runner, talker, "other", 0, since=ago, until=now) == "b\n"
    assert text(runner, talker, "other", 0, since=now) == ""
    assert text(runner, talker, "other", 0, until=ago) == ""


def test_a_tail_follows_to_the_end_of_the_app(runner: Runner, tmp_path: Path) -> None:
    script = f"echo one; {waiting_for(tmp_path / 'go')}; echo two; echo -n three"
    handle = runner.run(app(bash(script)), "local")
    lines = iter(runner.log_lines(handle, "a", 0, should_tail=True))

    first = next(lines)
    (tmp_path / "go").touch()

    assert (first, list(lines)) == ("one\n", ["two\n", "three"])


def test_the_ranks_of_a_group_are_told_apart(runner: Runner) -> None:
    command = 'echo "$RANK of $WORLD_SIZE"'.replace("$", "$$")
    role = Role("a", "", entrypoint="loom", args=["launch", "-n", "2", "--", "sh", "-c", command])
    handle = runner.run(app(role), "local")

    ended(runner, handle)

    assert sorted(runner.log_lines(handle, "a")) == ["[rank0]: 0 of 2\n", "[rank1]: 1 of 2\n"]


def test_a_role_or_replica_that_is_not_there_is_named_with_those_that_are(
    runner: Runner, talker: AppHandle
) -> None:
    with pytest.raises(NotFound, match=r"no role 'b'.*has: a, other"):
        list(runner.log_lines(talker, "b"))
    with pytest.raises(NotFound, match=r"no replica 'a/2'; a has replicas 0 to 1"):
        list(runner.log_lines(talker, "a", 2))


def test_logs_go_where_the_user_wants_them_and_stay_there(runner: Runner, tmp_path: Path) -> None:
    handle = runner.run(app(bash("echo kept")), "local", {"log_dir": str(tmp_path / "logs")})
    ended(runner, handle)

    assert text(runner, handle) == "kept\n"
    runner.delete(handle)
    kept = tmp_path / "logs/torchx" / app_id_of(handle) / "a/0/stdout.log"
    assert kept.read_text() == "kept\n"


# Failing and trying again.


COUNT = 'n=$(cat count 2>/dev/null || echo 0); echo $((n + 1)) > count; echo "attempt $n"; '


def test_an_app_that_fails_twice_and_may_three_times_succeeds(
    runner: Runner, tmp_path: Path
) -> None:
    handle = runner.run(app(bash(COUNT + "[ $n -ge 2 ]", max_retries=3)), "local")

    status = ended(runner, handle)

    assert (status.state, status.num_restarts) == (AppState.SUCCEEDED, 2)
    assert text(runner, handle) == "attempt 0\nattempt 1\nattempt 2\n"
    assert (tmp_path / "project/count").read_text() == "3\n"


def test_an_app_that_always_fails_fails_after_its_retries(runner: Runner, tmp_path: Path) -> None:
    handle = runner.run(app(bash(COUNT + "exit 7", max_retries=2)), "local")

    status = ended(runner, handle)

    assert (status.state, status.num_restarts, status.msg) == (
        AppState.FAILED,
        2,
        "exit_code_7_a_0",
    )
    assert (tmp_path / "project/count").read_text() == "3\n"


@pytest.mark.parametrize(
    ("policy", "lives"),
    [
        (RetryPolicy.REPLICA, {"a0": 2, "a1": 1, "b0": 1}),
        (RetryPolicy.ROLE, {"a0": 2, "a1": 2, "b0": 1}),
        (RetryPolicy.APPLICATION, {"a0": 2, "a1": 2, "b0": 2}),
    ],
)
def test_the_policy_says_who_is_started_again(
    runner: Runner, tmp_path: Path, policy: RetryPolicy, lives: dict[str, int]
) -> None:
    """Replica a0 fails once when all are up; everyone ends when a0 lives again."""
    live = "echo >> $ME; "
    wait = waiting_for(Path("go"))
    fail_once = (
        "if [ $(wc -l < a0) = 1 ]; then until [ -e a1 ] && [ -e b0 ]; do sleep 0.01; done; exit 1; "
        "fi; touch go"
    )
    role_a = f"if [ $ME = a0 ]; then {fail_once}; else {wait}; fi"
    asked = app(
        bash(
            live + role_a,
            num_replicas=2,
            max_retries=1,
            retry_policy=policy,
            env={"ME": "a${replica_id}"},
        ),
        bash(live + wait, "b", env={"ME": "b0"}),
    )

    status = ended(runner, runner.run(asked, "local", QUICK))

    assert (status.state, status.num_restarts) == (AppState.SUCCEEDED, 1)
    found = {name: len((tmp_path / "project" / name).read_text()) for name in ("a0", "a1", "b0")}
    assert found == lives


def test_a_replica_that_was_stopped_for_a_restart_is_not_killed_in_its_next_life(
    runner: Runner,
) -> None:
    """Its grace ended with the life that was told to stop."""
    fails_once = COUNT + "[ $n = 1 ]"
    asked = app(bash(fails_once, max_retries=1), bash("sleep 1.5; echo whole", "b"))

    handle = runner.run(asked, "local", QUICK)

    status = ended(runner, handle)
    assert (status.state, status.msg, status.num_restarts) == (AppState.SUCCEEDED, "", 1)
    assert text(runner, handle, "b") == "whole\n"


def test_the_ranks_of_a_group_meet_at_one_port_whoever_was_started_again(
    runner: Runner, tmp_path: Path
) -> None:
    wait = waiting_for(Path("go"))
    up = waiting_for(Path("up"))
    again = f"if [ $GROUP_RANK.$TORCHELASTIC_RESTART_COUNT = 0.0 ]; then {up}; exit 1; fi; "
    rest = f"if [ $GROUP_RANK = 0 ]; then touch go; else touch up; {wait}; fi"
    command = ("echo $MASTER_PORT; " + again + rest).replace("$", "$$")
    role = Role(
        "a",
        "",
        entrypoint="loom",
        args=["launch", "-n", "1", "--", "bash", "-c", command],
        num_replicas=2,
        max_retries=1,
        retry_policy=RetryPolicy.REPLICA,
    )

    handle = runner.run(app(role), "local", QUICK)

    assert ended(runner, handle).state is AppState.SUCCEEDED
    ports = [text(runner, handle, "a", replica).split()[-1] for replica in (0, 1)]
    assert ports[0] == ports[1]


def test_a_role_goes_on_with_its_minimum_of_replicas(runner: Runner, tmp_path: Path) -> None:
    fail = "if [ $ME = 0 ]; then touch failed; exit 1; fi; "
    script = f"{fail}{waiting_for(Path('failed'))}; echo on"
    role = bash(script, num_replicas=2, min_replicas=1, env={"ME": "${replica_id}"})

    handle = runner.run(app(role), "local")

    status = ended(runner, handle)
    states = [replica.state for replica in status.roles[0].replicas]
    assert (status.state, states) == (AppState.SUCCEEDED, [AppState.FAILED, AppState.SUCCEEDED])
    assert text(runner, handle, "a", 1) == "on\n"


# Errors that ranks write down.


def write_error(message: str, seconds: int) -> str:
    """Return a script that leaves what torchelastic's `@record` leaves."""
    error = {"message": {"message": message, "extraInfo": {"timestamp": str(seconds)}}}
    return f"echo '{json.dumps(error)}' > $TORCHELASTIC_ERROR_FILE; exit 1"


def error_of(status: AppStatus) -> str:
    return str(json.loads(status.structured_error_msg)["message"]["message"])


def test_the_first_error_by_time_is_in_the_status(runner: Runner) -> None:
    late = f"echo; {waiting_for(Path('up'))}; {write_error('late', 200)}"
    early = f"oops() {{ {write_error('early', 100)}; }}; trap oops TERM; touch up; {FOREVER}"
    asked = app(bash(late), bash("echo; " + early, "b"))

    status = ended(runner, runner.run(asked, "local"))

    assert (error_of(status), status.msg) == ("early", "exit_code_1_a_0")


def test_a_rank_that_printed_nothing_can_write_its_error(runner: Runner) -> None:
    handle = runner.run(app(bash(write_error("silent", 100))), "local")

    status = ended(runner, handle)

    assert text(runner, handle) == ""
    assert error_of(status) == "silent"


def test_the_first_error_by_time_is_the_apps_though_a_later_attempt_ended_it(
    runner: Runner,
) -> None:
    script = COUNT + f"if [ $n = 0 ]; then {write_error('first attempt', 100)}; fi; exit 9"

    status = ended(runner, runner.run(app(bash(script, max_retries=1)), "local"))

    assert status.state is AppState.FAILED
    assert json.loads(status.structured_error_msg)["message"]["message"] == "first attempt"


# Ports.


def test_a_port_of_nought_is_any_free_one_and_told_by_name(runner: Runner) -> None:
    role = bash("echo $LOOM_PORT_WEB $LOOM_PORT_FIXED", port_map={"web": 0, "fixed": 4711})
    handle = runner.run(app(role), "local")

    ended(runner, handle)

    web, fixed = map(int, text(runner, handle).split())
    assert web > 1023
    assert fixed == 4711
