"""What goes wrong on a machine, done to real processes and witnessed by /proc and their files."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Machine, all_pids, environ, parent, processes_of, until

pytestmark = pytest.mark.process

STUBBORN = "trap '' TERM; echo up > up; while :; do sleep 1; done"
# Leaves a daemon in a session of its own and one that forgot its environment.
FORKING = """
(setsid sh -c 'echo $$ > daemon; exec sleep 1000' &)
(env -i setsid sh -c 'echo $$ > stranger; exec sleep 1001' &)
while [ ! -s daemon ] || [ ! -s stranger ]; do sleep 0.01; done
"""


def check_gone(machine: Machine, app_id: str, state: str, reason: str) -> None:
    """Nothing of the app is left, and `ls` and `show` say how it ended."""
    assert processes_of(app_id) == []
    until(lambda: not left_of(machine, app_id), "no store and no socket left")
    assert machine.listed()[app_id] == state
    assert machine.show(app_id)["reason"] == reason
    assert not list(machine.home.rglob("*.lock")) + list(machine.home.rglob("*.partial"))


def left_of(machine: Machine, app_id: str) -> list[Path]:
    """Return the app's shared memory and sockets."""
    memory, sockets = Path("/dev/shm"), machine.runtime / "torchloom"
    return [*memory.glob(f"loom-{app_id}*"), *sockets.glob(f"{app_id}.*")]


def recorded(machine: Machine, app_id: str) -> str:
    """Return the state that is on the disk, whatever a reader makes of it."""
    record = json.loads((machine.home / "runs" / app_id / "status.json").read_text())
    return str(record["state"])


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def written(machine: Machine, name: str) -> str:
    """Return what an app wrote into its own file, once it has."""
    path, seen = machine.root / name, [""]

    def there() -> str:
        seen[0] = path.read_text().strip() if path.exists() else ""
        return seen[0]

    until(there, f"{name} written by the app")
    return seen[0]


def strangers_of(machine: Machine) -> list[int]:
    """Return the daemons that the app says it left."""
    return [int(written(machine, name)) for name in ("stranger", "daemon")]


COUNTING = """
i=0
while [ ! -e go ]; do i=$((i + 1)); echo $i; echo $i > "count-$RANK"; sleep 0.02; done
echo last words
"""


def test_when_the_agent_is_killed_another_finds_its_ranks(machine: Machine) -> None:
    app_id = machine.submit("-n", "2", "bash", machine.script(COUNTING))
    written(machine, "count-0")
    counted = int(written(machine, "count-1"))
    before = machine.team(app_id)
    ranks = {pid for pid in processes_of(app_id) if parent(pid) == before.keeper}

    os.kill(before.agent, signal.SIGKILL)
    until(lambda: not is_alive(before.agent), "the agent gone")
    until(lambda: int(written(machine, "count-1") or 0) > counted + 5, "the rank works on")
    after = machine.team(app_id)

    assert after.agent != before.agent
    assert after.keeper == before.keeper
    assert ranks == {pid for pid in processes_of(app_id) if parent(pid) == after.keeper}
    (machine.root / "go").touch()
    machine.loom("show", app_id, "--wait")
    check_gone(machine, app_id, "COMPLETED", "ranks_ended")
    lines = machine.loom("logs", app_id).stdout.splitlines()
    printed = [line.split()[1] for line in lines if line.startswith("[rank1]:")]
    numbers = [int(word) for word in printed if word.isdigit()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert sum("last words" in line for line in lines) == 2


def test_an_exit_that_no_agent_saw_is_told_to_the_next(machine: Machine) -> None:
    script = machine.script("echo up > up-$RANK; while [ ! -e go ]; do sleep 0.02; done; exit 4")
    app_id = machine.submit("-n", "2", "bash", script)
    team = machine.team(app_id)
    written(machine, "up-1")

    os.kill(team.guard, signal.SIGSTOP)  # it cannot make another agent yet
    os.kill(team.agent, signal.SIGKILL)
    (machine.root / "go").touch()
    until(lambda: not processes_of(app_id), "the ranks have ended")
    os.kill(team.guard, signal.SIGCONT)

    assert machine.loom("show", app_id, "--wait").returncode == 1
    assert [rank["exit_code"] for rank in machine.show(app_id)["ranks"]] == [4, 4]
    check_gone(machine, app_id, "FAILED", "exit_code_4_rank_0")


def test_when_the_launch_process_is_killed_all_of_the_app_ends(machine: Machine) -> None:
    app_id = machine.submit("-n", "2", "bash", machine.script(FORKING + "sleep 1002"))
    strangers = strangers_of(machine)
    team = machine.team(app_id)

    os.kill(team.launcher, signal.SIGKILL)
    until(lambda: not processes_of(app_id) and not any(map(is_alive, strangers)), "all gone")

    until(lambda: recorded(machine, app_id) == "FAILED", "the end written down")
    check_gone(machine, app_id, "FAILED", "launcher_lost")
    until(lambda: not any(map(is_alive, team)), "its servants gone")


def test_when_the_keeper_is_killed_the_ranks_are_gone_at_once(machine: Machine) -> None:
    app_id = machine.submit("-n", "2", "bash", machine.script(FORKING + "sleep 1002"))
    strangers = strangers_of(machine)
    team = machine.team(app_id)

    os.kill(team.keeper, signal.SIGKILL)
    until(lambda: not processes_of(app_id) and not any(map(is_alive, strangers)), "all gone")

    machine.loom("show", app_id, "--wait")
    check_gone(machine, app_id, "FAILED", "exit_signal_9_rank_0")


def test_when_the_keeper_is_killed_a_retry_gets_a_new_one(machine: Machine) -> None:
    script = machine.script("echo $TORCHELASTIC_RESTART_COUNT >> tries-$RANK; sleep 1003")
    app_id = machine.submit("-n", "2", "--max-retries", "1", "bash", script)
    written(machine, "tries-1")
    team = machine.team(app_id)

    os.kill(team.keeper, signal.SIGKILL)
    until(lambda: written(machine, "tries-1").split() == ["0", "1"], "a second try")

    assert machine.team(app_id).keeper != team.keeper
    assert machine.loom("stop", app_id).stdout.strip() == f"{app_id} CANCELLED"


def test_without_anybody_the_keeper_ends_its_ranks_at_the_orphan_limit(machine: Machine) -> None:
    app_id = machine.submit("-cfg", "orphan_limit=1", "-n", "2", "sleep", "1000")
    until(lambda: len(processes_of(app_id)) == 2, "both ranks up")
    team = machine.team(app_id)

    for pid in (team.guard, team.launcher, team.agent):
        with contextlib.suppress(ProcessLookupError):  # it ended with another
            os.kill(pid, signal.SIGKILL)
    until(lambda: not processes_of(app_id) and not is_alive(team.keeper), "all gone")

    check_gone(machine, app_id, "FAILED", "launcher_lost")


def test_without_its_guard_an_app_runs_on_and_is_stopped_whole(machine: Machine) -> None:
    app_id = machine.submit("bash", machine.script(FORKING + "sleep 1004"))
    strangers = strangers_of(machine)
    guard = machine.team(app_id).guard

    os.kill(guard, signal.SIGKILL)
    until(lambda: not is_alive(guard), "the guard gone")

    assert machine.listed() == {app_id: "RUNNING"}
    assert machine.loom("stop", app_id).stdout.strip() == f"{app_id} CANCELLED"
    assert not any(map(is_alive, strangers))
    check_gone(machine, app_id, "CANCELLED", "cancelled_by_user")


def test_without_guard_and_agent_the_app_is_ended_by_its_launch_process(machine: Machine) -> None:
    app_id = machine.submit("-n", "2", "sleep", "1005")
    team = machine.team(app_id)

    for pid in (team.guard, team.agent):
        with contextlib.suppress(ProcessLookupError):  # it ended with the other
            os.kill(pid, signal.SIGKILL)
    machine.loom("show", app_id, "--wait")

    assert processes_of(app_id) == []
    assert left_of(machine, app_id) == []
    assert not is_alive(team.keeper)
    assert machine.show(app_id)["reason"].startswith("node_lost_")


def test_an_app_that_ignores_sigterm_is_killed_after_its_grace(machine: Machine) -> None:
    app_id = machine.submit("-cfg", "grace=1", "bash", machine.script(STUBBORN))
    written(machine, "up")

    done = machine.loom("stop", app_id)

    assert done.stdout.strip() == f"{app_id} CANCELLED"
    check_gone(machine, app_id, "CANCELLED", "cancelled_by_user")
    assert machine.show(app_id)["ranks"][0]["exit_code"] == -signal.SIGKILL


def test_an_app_that_ends_takes_its_daemons_along(machine: Machine) -> None:
    app_id = machine.submit("bash", machine.script(FORKING))
    strangers = [int(written(machine, name)) for name in ("daemon", "stranger")]

    machine.loom("show", app_id, "--wait")

    assert not any(map(is_alive, strangers))
    check_gone(machine, app_id, "COMPLETED", "ranks_ended")


def test_an_app_that_is_stopped_takes_its_daemons_along(machine: Machine) -> None:
    app_id = machine.submit("bash", machine.script(FORKING + "sleep 1003"))
    strangers = [int(written(machine, name)) for name in ("daemon", "stranger")]

    machine.loom("stop", app_id)

    assert not any(map(is_alive, strangers))
    check_gone(machine, app_id, "CANCELLED", "cancelled_by_user")


def test_cancelled_during_its_start_from_two_shells_it_ends_once(machine: Machine) -> None:
    spec = {
        "name": "wide",
        "roles": [
            {"name": "r", "image": "", "entrypoint": "sleep", "args": ["999"], "num_replicas": 40}
        ],
    }
    (machine.root / "wide.json").write_text(json.dumps(spec))
    runs = machine.home / "runs"
    submit = machine.shell("run", "-d", "wide.json")
    until(lambda: runs.exists() and list(runs.glob("wide-*")), "the app's folder")
    app_id = next(runs.glob("wide-*")).name

    stops = [machine.shell("stop", app_id), machine.shell("stop", app_id)]
    answers = [stop.communicate(timeout=60)[0].strip() for stop in stops]

    submit.communicate(timeout=60)
    assert [answer.rpartition(" ")[2] for answer in answers] == ["CANCELLED", "CANCELLED"]
    assert machine.loom("stop", app_id).stdout.strip() == f"{app_id} had already ended: CANCELLED"
    check_gone(machine, app_id, "CANCELLED", "cancelled_by_user")
    events = [json.loads(line)["event"] for line in (runs / app_id / "events.jsonl").open()]
    assert events.count("cancelled") == 1


def test_a_submitter_killed_in_the_middle_leaves_a_whole_app_or_none(machine: Machine) -> None:
    for delay in (0.02, 0.05, 0.08, 0.11, 0.14, 0.17, 0.2):
        shell = machine.shell("run", "-d", "sleep", "998")
        with contextlib.suppress(subprocess.TimeoutExpired):
            shell.wait(timeout=delay)  # the instant of the kill
        shell.kill()
        shell.communicate()

    def settled() -> bool:
        agents = [p for p in all_pids() if any(e.startswith(b"LOOM_AGENT_OF=") for e in environ(p))]
        mine = [p for p in agents if f"LOOM_HOME={machine.home}".encode() in environ(p)]
        return len(mine) == 4 * list(machine.listed().values()).count("RUNNING")

    until(settled, "every agent has a listed app")
    for app_id, state in machine.listed().items():
        assert state == "RUNNING"
        assert len(processes_of(app_id)) == 1
        machine.loom("stop", app_id)


def test_an_app_whose_submitter_never_learned_its_id_is_unmade(machine: Machine) -> None:
    halfway = """
import os, socket
from torchloom.launch.supervisor import starter
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.request import LaunchRequest, ReplicaRequest, RoleRequest
run = ReplicaRequest(("touch", "ran"), {})
logs = os.path.join(os.environ["LOOM_HOME"], "logs")
request = LaunchRequest("half-1", "half", "s", os.getcwd(), logs, (RoleRequest("r", (run,)),))
folder = RunFolder.create(request, {}, starter._first_record(request))
ours, theirs = socket.socketpair()
starter._run_process(folder, theirs.fileno(), "nothing", request, dict(os.environ))
assert ours.recv(6) == b"ready\\n"
"""
    subprocess.run([sys.executable, "-c", halfway], env=machine.env, cwd=machine.root, check=True)

    until(lambda: machine.listed() == {} and not os.listdir(machine.home / "runs"), "unmade")

    assert not (machine.root / "ran").exists()


def test_fifty_apps_from_ten_shells_are_fifty_apps(machine: Machine) -> None:
    script = machine.script('echo "$LOOM_JOB" >> "witness-$LOOM_JOB"')
    each = f"for i in 1 2 3 4 5; do {sys.executable} -m torchloom run -d bash {script}; done"

    shells = [
        subprocess.Popen(
            ["bash", "-c", each],
            env=machine.env,
            cwd=machine.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(10)
    ]
    outputs = [shell.communicate(timeout=300) for shell in shells]

    assert [error for _, error in outputs if " submitted\n" not in error] == []
    handles = [line for output, _ in outputs for line in output.split()]
    ids = {handle.rpartition("/")[2] for handle in handles}
    assert len(handles) == len(ids) == 50
    until(lambda: set(machine.listed().values()) == {"COMPLETED"}, "all COMPLETED", 60)
    assert set(machine.listed()) == ids
    witnesses = {path.name: path.read_text() for path in machine.root.glob("witness-*")}
    assert witnesses == {f"witness-{app_id}": f"{app_id}\n" for app_id in ids}
    for app_id in ids:
        assert processes_of(app_id) == []


@pytest.mark.parametrize("policy", ["REPLICA", "ROLE", "APPLICATION"])
def test_a_script_that_fails_twice_is_tried_three_times(machine: Machine, policy: str) -> None:
    text = 'n=$(cat "count$1" 2>/dev/null || echo 0); echo $((n + 1)) > "count$1"; [ $n -ge $2 ]'
    script = machine.script(text)
    role = {"image": "", "entrypoint": "bash", "max_retries": 2, "retry_policy": policy}
    spec = {
        "name": "flaky",
        "roles": [
            {"name": "flaky", "args": [script, "${replica_id}", "2"], **role},
            {"name": "steady", "args": ["-c", "while [ ! -e go ]; do sleep 0.02; done"], **role},
        ],
    }
    (machine.root / "flaky.json").write_text(json.dumps(spec))

    app_id = machine.submit("flaky.json")
    until(lambda: written(machine, "count0") == "3", "three tries by the script's own count")
    (machine.root / "go").touch()

    assert machine.loom("show", app_id, "--wait").returncode == 0
    shown = machine.show(app_id)
    restarts = {rank["role"]: rank["generation"] for rank in shown["ranks"]}
    assert restarts == {"flaky": 2, "steady": 2 if policy == "APPLICATION" else 0}
    check_gone(machine, app_id, "COMPLETED", "ranks_ended")


def test_retries_used_up_are_a_failure_with_the_last_cause(machine: Machine) -> None:
    script = machine.script("echo x >> tries; exit 7")

    app_id = machine.submit("--max-retries", "2", "bash", script)
    done = machine.loom("show", app_id, "--wait")

    assert done.returncode == 1
    assert written(machine, "tries").split() == ["x", "x", "x"]
    check_gone(machine, app_id, "FAILED", "exit_code_7_bash_0")


@pytest.fixture
def small_disk(machine: Machine):
    """A file system of one MiB; what is mounted is unmounted."""
    place = machine.root / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "loom-test", place], check=True)
    yield place
    while place.is_mount():
        subprocess.run(["umount", "-l", place], check=True)


def fill_up(disk: Path) -> None:
    ballast = os.open(disk / "ballast", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while True:
            os.write(ballast, b"x" * 4096)
    os.close(ballast)
    assert os.statvfs(disk).f_bavail == 0


CHATTER = """
import os
for i in range(400):
    os.write(1, b"x" * 9999 + b"\\n")
open("printed", "w").write("all\\n")
"""


@pytest.mark.needs("mount")
def test_a_full_log_disk_costs_logs_and_never_the_app(machine: Machine, small_disk: Path) -> None:
    (machine.root / "chatter.py").write_text(CHATTER)

    app_id = machine.submit("-cfg", f"log_dir={small_disk}", "chatter.py")
    done = machine.loom("show", app_id, "--wait")

    assert done.returncode == 0
    assert written(machine, "printed") == "all"
    log = next(small_disk.rglob("stdout.log"))
    assert machine.show(app_id)["lost_log_bytes"] == 400 * 10_000 - log.stat().st_size
    check_gone(machine, app_id, "COMPLETED", "ranks_ended")


@pytest.mark.needs("mount")
def test_a_full_state_disk_does_not_make_ls_lie(machine: Machine, small_disk: Path) -> None:
    machine.env["LOOM_HOME"] = str(small_disk / "home")
    script = machine.script("while [ ! -e go ]; do sleep 0.02; done; exit 5")
    app_id = machine.submit("bash", script)
    until(lambda: machine.listed()[app_id] == "RUNNING", "RUNNING")
    fill_up(small_disk)

    (machine.root / "go").touch()
    machine.loom("show", app_id, "--wait")

    assert machine.listed() == {app_id: "FAILED"}
    assert machine.show(app_id)["reason"] == "exit_code_5_bash_0"
    assert processes_of(app_id) == []
    refused = machine.loom("run", "-d", "true")
    assert refused.returncode == 1
    assert "No space left on device" in refused.stderr
    assert "LOOM_HOME" in refused.stderr
    assert machine.listed() == {app_id: "FAILED"}


@pytest.mark.needs("mount")
def test_a_read_only_state_folder_is_a_clear_refusal(machine: Machine, small_disk: Path) -> None:
    machine.env["LOOM_HOME"] = str(small_disk)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)

    done = machine.loom("run", "-d", "touch", str(machine.root / "ran"))

    assert done.returncode == 1
    assert "Read-only file system" in done.stderr
    assert "LOOM_HOME" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert machine.listed() == {}
    assert not (machine.root / "ran").exists()


@pytest.mark.needs("mount")
def test_a_state_folder_that_turns_read_only_keeps_the_truth(
    machine: Machine, small_disk: Path
) -> None:
    machine.env["LOOM_HOME"] = str(small_disk)
    stubborn = machine.submit("bash", machine.script(STUBBORN))
    quick = machine.submit("bash", machine.script("while [ ! -e go ]; do sleep 0.02; done"))
    written(machine, "up")
    until(lambda: set(machine.listed().values()) == {"RUNNING"}, "RUNNING")

    # A file system with open files cannot be remounted; a read-only view over it can be mounted.
    subprocess.run(["mount", "--bind", small_disk, small_disk], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", small_disk], check=True)
    (machine.root / "go").touch()
    machine.loom("show", quick, "--wait")
    machine.loom("stop", "--now", stubborn)

    assert machine.listed() == {stubborn: "CANCELLED", quick: "COMPLETED"}
    assert processes_of(stubborn) + processes_of(quick) == []


@pytest.mark.needs("mount")
def test_after_a_reboot_a_running_app_is_lost(machine: Machine) -> None:
    app_id = machine.submit("sleep", "997")
    until(lambda: machine.listed()[app_id] == "RUNNING", "RUNNING")
    other = machine.root / "boot_id"
    other.write_text("00000000-0000-0000-0000-000000000000\n")
    words = " ".join(machine.command("ls", "--json"))
    inside = f"mount --bind {other} /proc/sys/kernel/random/boot_id && exec {words}"

    seen = subprocess.run(
        ["unshare", "--mount", "sh", "-c", inside],
        env=machine.env,
        capture_output=True,
        text=True,
        check=True,
    )

    assert [(j["id"], j["state"], j["reason"]) for j in json.loads(seen.stdout)] == [
        (app_id, "FAILED", "launcher_lost")
    ]
    assert machine.listed() == {app_id: "RUNNING"}
    machine.loom("stop", app_id)


# Runs in a pid namespace of its own, where the next pid can be chosen.
REUSE = """
import json, os, signal, subprocess, sys
loom = [sys.executable, "-m", "torchloom"]
def run(*words):
    return subprocess.run([*loom, *words], capture_output=True, text=True, check=True).stdout
app_id = run("run", "-d", "sleep", "996").strip().rpartition("/")[2]
while json.loads(run("ls", "--json"))[0]["state"] != "RUNNING":
    pass
record = json.load(open(f"{os.environ['LOOM_HOME']}/runs/{app_id}/status.json"))
owners = [record["guard"]["pid"], record["launcher"]["pid"]]
for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
    try:
        if f"LOOM_AGENT_OF={app_id}".encode() in open(f"/proc/{pid}/environ", "rb").read():
            os.kill(pid, signal.SIGKILL)
    except OSError:  # it has just ended
        pass
while os.path.exists(f"/proc/{owners[0]}") or os.path.exists(f"/proc/{owners[1]}"):
    os.waitpid(-1, 0)  # this process is the namespace's init: the dead are its to bury
impostors = []
for pid in owners:
    while True:
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(pid - 1))
        impostor = subprocess.Popen(["sleep", "995"])
        if impostor.pid == pid:
            break
        impostor.kill()
        impostor.wait()
    impostors.append(impostor)
job = json.loads(run("ls", "--json"))[0]
run("stop", app_id)
print(json.dumps([job["state"], job["reason"], [one.poll() for one in impostors]]))
for impostor in impostors:
    impostor.kill()
"""


@pytest.mark.needs("mount")
def test_a_reused_pid_is_neither_believed_nor_signalled(machine: Machine) -> None:
    seen = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", REUSE],
        env=machine.env,
        cwd=machine.root,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert seen.returncode == 0, seen.stderr
    assert json.loads(seen.stdout) == ["FAILED", "launcher_lost", [None, None]]
