"""`loom up` and `loom down`: one plane, however often it is asked for, and honest exit codes."""

import contextlib
import importlib.util
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.main import main
from torchloom.launch.keeper.zygote_client import leave_all

from ..test_json import problems

pytestmark = pytest.mark.process
NO_PLANE = b"loom: no plane runs here; `loom up` starts one\n"


@pytest.fixture
def plane(loom: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The command, and no plane after the test."""
    monkeypatch.setenv("LOOM_NATS", "")
    yield loom
    loom("down")


def status(loom: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(loom("up", "--status", "--json").stdout)
    return found


def test_a_plane_comes_up_shows_itself_and_goes_down(plane: Any, state: Path) -> None:
    up = plane("up", "--only", "nats", "--json")
    shown = json.loads(up.stdout)

    assert (up.returncode, up.stderr) == (0, b"loom: starting nats\n")
    assert problems("up", shown) == []
    assert status(plane) == shown
    assert shown["token_file"] == str(state / "plane" / "admin.token")
    assert Path(f"/proc/{shown['pid']}/environ").exists()

    down = plane("down", "--json")
    none = {"zygotes_ended": 0, "zygotes_in_use": [], "zygotes_starting": 0}
    assert json.loads(down.stdout) == {"was_up": True, "pid": shown["pid"], **none}
    assert problems("down", json.loads(down.stdout)) == []
    again = plane("up", "--status")
    assert (again.returncode, again.stdout, again.stderr) == (1, b"", NO_PLANE)


def test_up_twice_is_one_plane_and_down_twice_is_none(plane: Any) -> None:
    plane("up", "--only", "nats")
    first = status(plane)

    second = plane("up", "--only", "nats")

    assert (second.returncode, second.stderr) == (0, b"loom: the plane was already running\n")
    assert status(plane) == first
    ends = [plane("down") for _ in range(2)]
    assert [(end.returncode, end.stdout) for end in ends] == [
        (0, b"the plane is down\n"),
        (0, b"no plane was running\n"),
    ]


def test_several_at_once_give_one_plane(plane: Any) -> None:
    started = [plane.start("up", "--only", "nats", "--json") for _ in range(4)]

    shown = [json.loads(process.communicate()[0]) for process in started]

    assert [process.returncode for process in started] == [0, 0, 0, 0]
    assert all(one == shown[0] for one in shown)
    servers = [words for words in plane.processes().values() if "nats.conf" in words]
    assert len(servers) == 1


def test_after_a_kill_the_plane_comes_up_again(plane: Any, until: Callable[..., Any]) -> None:
    plane("up", "--only", "nats")
    first = status(plane)

    os.kill(first["pid"], signal.SIGKILL)
    until(lambda: not plane.processes(), "the parts to end")
    gone = plane("up", "--status")
    back = plane("up", "--only", "nats")

    assert (gone.returncode, gone.stderr) == (1, NO_PLANE)
    assert back.returncode == 0
    assert status(plane)["pid"] != first["pid"]


def test_training_goes_on_when_the_plane_is_killed(
    plane: Any, script: Callable[..., str], until: Callable[..., Any]
) -> None:
    plane("up", "--only", "nats")
    train = script(
        "import pathlib, time\n"
        "pathlib.Path('begun').touch()\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.01)\n"
        "print('trained')\n"
    )
    job = json.loads(plane("run", "-d", "--json", train).stdout)["id"]
    until(Path("begun").exists, "the rank to begin")

    os.kill(status(plane)["pid"], signal.SIGKILL)
    until(lambda: plane("up", "--status").returncode == 1, "the plane to be gone")
    Path("go").touch()

    assert plane("show", job, "--wait").returncode == 0
    assert b"trained" in plane("logs", job).stdout


def test_for_people_it_names_the_parts_their_processes_and_logs(plane: Any, state: Path) -> None:
    lines = plane("up", "--only", "nats").stdout.decode().splitlines()

    shown = status(plane)
    host = os.uname().nodename
    assert lines[0].startswith(f"plane on {host}, pid {shown['pid']}, up 0s, until `loom down`")
    assert lines[1:4] == [
        f"url    {shown['url']}",
        f"token  {shown['token_file']}",
        f"nats   {shown['nats']}",
    ]
    assert lines[4].split() == ["PART", "PID", "ENDED", "LOG"]
    assert lines[5].split()[::2] == ["nats", "never"]
    assert lines[5].endswith(f"{state}/plane/logs/{host}-nats.log")


@pytest.fixture
def warm(loom: Any) -> Iterator[dict[str, str]]:
    """Give what makes runs warm; no zygote is left after the test."""
    yield {"LOOM_WARM": "1", "OMP_NUM_THREADS": "1"}
    leave_all()


@pytest.mark.needs("torch")
def test_down_ends_idle_zygotes_and_names_those_that_a_job_uses(
    loom: Any,
    warm: dict[str, str],
    script: Callable[..., str],
    until: Callable[..., Any],
    tmp_path: Path,
) -> None:
    loom("run", "-d", "--wait", script("import torch\n"), env=warm)
    until(lambda: list(tmp_path.glob("run/torchloom/zygote-*.sock")), "the zygote to listen")
    waiting = script("import time; open('begun', 'w'); time.sleep(50)")
    job = json.loads(loom("run", "-d", "--json", waiting, env=warm).stdout)["id"]
    until(Path("begun").exists, "the rank to begin")
    zygotes = zygotes_in(tmp_path)

    busy = loom("down", "--json")
    told = loom("down").stdout.decode().splitlines()
    stayed = zygotes_in(tmp_path)
    loom("stop", "--now", job)
    idle = loom("down")

    (zygote,) = zygotes
    stays = [{"pid": zygote, "jobs": [job]}]
    warm_ones = {"zygotes_ended": 0, "zygotes_in_use": stays, "zygotes_starting": 0}
    assert json.loads(busy.stdout) == {"was_up": False, "pid": None, **warm_ones}
    assert problems("down", json.loads(busy.stdout)) == []
    assert told[1].startswith(f"the warm interpreter {zygote} stays: {job} uses it")
    assert stayed == zygotes
    assert idle.stdout == b"no plane was running\n1 idle warm interpreter ended\n"
    assert zygotes_in(tmp_path) == []


def zygotes_in(folder: Path) -> list[int]:
    """Return the zygotes whose socket is below a folder, by /proc."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if b"torchloom.worker.process.zygote" in words and os.fsencode(folder) in words:
                found.append(int(entry.name))
    return found


def test_at_another_address_nats_speaks_tls(plane: Any) -> None:
    up = plane("up", "--only", "nats", "--host", "127.0.0.2", "--json")

    assert up.returncode == 0, up.stderr
    assert json.loads(up.stdout)["nats"].startswith("tls://127.0.0.2:")
    other = plane("up", "--only", "nats", "--host", "127.0.0.3")
    assert other.returncode == 2
    assert b"`loom down` first" in other.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--trust-operators", "--host", "0.0.0.0"], "every address at once"),
        (["--trust-operators", "--host", "192.0.2.1"], "Cannot assign requested address"),
        (["--only", "agent"], "'agent' is not one of"),
        (["--status", "--only", "nats"], "--status cannot be combined with"),
        (["now"], "unexpected extra argument"),
    ],
)
def test_what_cannot_be_is_misuse_in_one_sentence(
    words: list[str], sentence: str, plane: Any, until: Callable[..., Any]
) -> None:
    done = plane("up", *words)

    assert (done.returncode, done.stdout) == (2, b"")
    said = [line for line in done.stderr.decode().splitlines() if "starting" not in line]
    assert len(said) == 1
    assert sentence in said[0]
    until(lambda: plane.processes() == {}, "its interpreter to leave")


def test_a_plane_that_cannot_start_is_a_failure_with_its_reason(
    plane: Any, until: Callable[..., Any]
) -> None:
    done = plane("up", "--only", "weaver", env={"LOOM_NATS": "nats://127.0.0.1:1"})

    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[-1] == (
        "loom: no NATS server of this plane at nats://127.0.0.1:1: no server answers; "
        "`loom up` starts its own"
    )
    until(lambda: plane.processes() == {}, "its interpreter to leave")


@pytest.mark.skipif(
    importlib.util.find_spec("torchloom.weaver.__main__") is None, reason="there is no weaver yet"
)
def test_the_whole_plane_comes_up_and_each_part_comes_back(
    plane: Any, until: Callable[..., Any]
) -> None:
    from torchloom.client.plane import find

    assert plane("up").returncode == 0
    before = find() or {}

    def pids() -> dict[str, int | None]:
        return {name: part["pid"] for name, part in (find() or {})["parts"].items()}

    killed = pids()
    assert all(killed.values())  # process 0 would be all of this group
    for pid in killed.values():
        os.kill(pid or os.getpid(), signal.SIGKILL)
    until(lambda: None not in pids().values() and not killed.items() & pids().items(), "all four")

    after = find() or {}
    assert after["pid"] == before["pid"]
    assert {name: part["ends"] for name, part in after["parts"].items()} == {
        "nats": 1,
        "weaver": 1,
        "agent": 1,
        "server": 1,
    }


def test_up_waits_until_its_own_node_can_have_jobs_and_says_when_that_takes_long(
    plane: Any, until: Callable[..., Any], script: Callable[..., str]
) -> None:
    queue = {"LOOM_PLANE": "1", "LOOM_DEVICES": "cpu:1"}
    started = plane.start("up", env={**os.environ, **queue})
    agent = until(lambda: of_part(plane, "torchloom.launch.node_agent"), "the node agent")
    os.kill(agent, signal.SIGSTOP)  # before it has said what the node has
    try:
        late = started.communicate()[1].decode()
    finally:
        os.kill(agent, signal.SIGCONT)

    again = plane("up", env=queue)
    Path("job.json").write_text(json.dumps({"name": "note", "script": script("pass")}))
    job = plane("run", "job.json", env=queue)  # to its end, so that nothing starts a plane again

    assert started.returncode == 0
    assert "the node agent has not registered after 5 s" in late
    assert b"registered" not in again.stderr
    assert job.returncode == 0, job.stderr


def of_part(plane: Any, module: str) -> int:
    """Return the process of a part of the plane, 0 while there is none."""
    return next((pid for pid, words in plane.processes().items() if module in words), 0)


def test_up_needs_no_library_of_the_planes_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--status"]) == 1

    assert capsys.readouterr().err == NO_PLANE.decode()
