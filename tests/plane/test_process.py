"""A plane lives: each part comes back alone, nothing outlives it, there is one, and it leaves."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from torchloom.bus.nats.client import new_key
from torchloom.bus.subjects import agent_of_job
from torchloom.client import plane as client
from torchloom.errors import LoomError
from torchloom.launch.host import sockets
from torchloom.plane.credentials import credentials

from ..harness.home import until
from .conftest import Planes, Server, alive, as_nobody, of_home

pytestmark = pytest.mark.process
PARTS = ("nats", "weaver", "agent")


def pids() -> dict[str, int | None]:
    found = client.find()
    assert found is not None
    return {name: part["pid"] for name, part in found["parts"].items()}


def kill(pid: int | None) -> None:
    """Kill a part that runs: without a number it would be the whole group of the tests."""
    assert pid
    os.kill(pid, signal.SIGKILL)


def test_a_plane_has_three_processes_and_tells_each_how_to_reach_the_bus(
    planes: Planes, home: Path
) -> None:
    found = planes.up()

    keys = home / "plane" / "keys"
    assert client.ask("told") == {
        "LOOM_NATS": found["nats"],
        "LOOM_NATS_CREDS": str(keys / "weaver.creds"),
    }
    assert client.shown_status(found) == {
        "url": f"unix://{client.folder()}/weaver.sock",
        "nats": found["nats"],
        "host": os.uname().nodename,
        "pid": found["pid"],
        "started_at": found["started_at"],
        "token_file": str(home / "plane" / "admin.token"),
    }
    assert set(of_home(home)) == {found["pid"], *pids().values()}
    assert json.loads((client.folder() / "plane.json").read_text())["pid"] == found["pid"]


def test_a_plane_vouches_for_agents_of_other_nodes_and_for_no_second_one_of_its_own(
    planes: Planes,
) -> None:
    found = planes.up()
    _, key = new_key()

    told = client.ask_control("admit", agent=agent_of_job("n2", "train-1"), key=key)

    assert (told["nats"], told["authority"]) == (found["nats"], "")
    assert told["token"].count(".") == 2
    of_job = agent_of_job("n2", "train-1")
    names = (os.uname().nodename, "weaver", "a.b", "n2", f"n2.{of_job}")
    for agent, made in (*((name, key) for name in names), (of_job, "x")):
        with pytest.raises(LoomError):
            client.ask_control("admit", agent=agent, key=made)


@pytest.mark.parametrize("killed", PARTS)
def test_a_part_that_is_killed_is_started_again_alone(planes: Planes, killed: str) -> None:
    before = planes.up()
    first = pids()

    kill(first[killed])
    until(lambda: pids()[killed] not in (first[killed], None))

    after = pids()
    changed = {name for name in PARTS if after[name] != first[name]}
    assert changed == {killed}
    assert all(alive(pid or 0) for pid in after.values())
    found = client.find()
    assert found is not None
    assert found["nats"] == before["nats"]
    assert (found["parts"][killed]["ends"], found["parts"][killed]["how"]) == (1, "SIGKILL")
    assert client.ask("told")["LOOM_NATS"] == before["nats"]


def test_a_plane_that_stays_has_a_server_and_says_where_it_answers(planes: Planes) -> None:
    found = planes.up("--pinned")
    server = pids()["server"]

    assert found["url"] == f"http://127.0.0.1:{server}/"
    kill(server)
    until(lambda: pids()["server"] not in (server, None))
    until(lambda: (client.find() or {})["url"] == f"http://127.0.0.1:{pids()['server']}/")


def test_a_plane_that_a_job_started_gets_its_server_when_it_is_to_stay(planes: Planes) -> None:
    before = planes.up()

    client.ask_control("ready", pinned=True)

    found = client.find()
    assert found is not None
    assert (before["url"], "server" in before["parts"]) == (f"unix://{client.door()}", False)
    assert found["url"] == f"http://127.0.0.1:{found['parts']['server']['pid']}/"


def test_a_plane_whose_server_cannot_live_is_up_and_says_so(planes: Planes) -> None:
    found = planes.up("--pinned", STAND_IN_SERVER_FAILS="1")

    log = found["parts"]["server"]["log"]
    words = "the HTTP server did not start: the stand-in will not serve"
    assert found["note"].endswith(f"{words}; see {log}")
    assert found["url"] == f"unix://{client.door()}"
    assert client.ask("told")["LOOM_NATS"] == found["nats"]


def test_a_killed_plane_takes_its_parts_along_and_the_next_one_takes_over(planes: Planes) -> None:
    first = planes.up()
    parts = [pid or 0 for pid in pids().values()]

    os.kill(first["pid"], signal.SIGKILL)
    until(lambda: not any(map(alive, parts)))
    assert client.find() is None
    second = planes.up()

    assert second["pid"] != first["pid"]
    assert client.ask("told")["LOOM_NATS"] == second["nats"]


def test_of_planes_started_at_once_one_lives(planes: Planes, home: Path) -> None:
    started = [planes.start() for _ in range(4)]

    said = [planes.said(process)["ok"] for process in started]

    assert sorted(said) == ["other", "other", "other", "up"]
    ended = [process.wait() for process, word in zip(started, said, strict=True) if word == "other"]
    assert ended == [0, 0, 0]
    assert len(of_home(home)) == 4


def test_a_plane_started_with_another_runtime_folder_finds_that_there_is_one(
    planes: Planes, tmp_path: Path
) -> None:
    planes.up()
    (tmp_path / "elsewhere").mkdir()

    said = planes.said(planes.start(XDG_RUNTIME_DIR=str(tmp_path / "elsewhere")))

    assert said == {"ok": "other"}


def test_a_plane_that_is_asked_to_leave_is_gone_when_the_answer_comes(
    planes: Planes, home: Path
) -> None:
    planes.up()

    assert client.leave() is True

    until(lambda: of_home(home) == {})  # its interpreter may still be leaving
    assert sorted(path.name for path in client.folder().iterdir()) == ["lock"]
    assert client.leave() is False


def test_a_plane_without_a_job_leaves_after_its_limit(planes: Planes, home: Path) -> None:
    started = planes.start(LOOM_PLANE_IDLE="0.5")

    assert planes.said(started) == {"ok": "up"}
    until(lambda: of_home(home) == {})
    assert client.find() is None


def test_a_plane_with_a_job_stays_until_it_is_over(planes: Planes, home: Path) -> None:
    (home / "busy").touch()
    found = planes.up(LOOM_PLANE_IDLE="0.3")
    begun = time.monotonic()
    until(lambda: time.monotonic() - begun > 1.5)

    assert alive(found["pid"])
    (home / "busy").unlink()

    until(lambda: not alive(found["pid"]))


def test_a_pinned_plane_stays_also_when_it_was_pinned_later(planes: Planes) -> None:
    found = planes.up(LOOM_PLANE_IDLE="3")  # in which it must be pinned
    assert found["pinned"] is False

    client.ask_control("ready", pinned=True)
    begun = time.monotonic()
    until(lambda: time.monotonic() - begun > 4)

    assert alive(found["pid"])
    assert (client.find() or {})["pinned"] is True


def test_a_plane_whose_weaver_cannot_live_says_so_and_leaves_nothing(
    planes: Planes, home: Path
) -> None:
    process = planes.start(STAND_IN_FAILS="1")

    said = planes.said(process)

    log = home / "plane" / "logs" / f"{os.uname().nodename}-weaver.log"
    assert said == {
        "error": f"the plane's weaver did not start: the stand-in will not live; see {log}",
        "code": "plane_not_up",
        "exit_code": 1,
    }
    assert process.wait() == 1
    assert of_home(home) == {}


def test_parts_can_be_had_alone_and_the_rest_later(planes: Planes) -> None:
    planes.up("--only=nats")
    assert set(pids()) == {"nats"}
    first = pids()

    client.ask_control("ready", only="weaver")
    assert set(pids()) == {"nats", "weaver"}
    client.ask_control("ready")

    assert set(pids()) == {"nats", "weaver", "agent"}
    assert pids()["nats"] == first["nats"]


def test_a_foreign_nats_is_never_written_to_and_a_free_port_is_taken(
    planes: Planes, server: Callable[..., Server]
) -> None:
    foreign = server()
    before = foreign.counters()

    found = planes.up(LOOM_NATS=foreign.url)

    assert found["nats"] != foreign.url
    assert found["note"] == (
        f"the NATS server at {foreign.url} is not used (it does not know our credentials); "
        f"this plane's is at {found['nats']}"
    )
    assert foreign.counters() == before
    assert before["in_msgs"] == 0
    assert client.ask("told")["LOOM_NATS"] == found["nats"]


def test_a_nats_with_our_credentials_is_used(
    planes: Planes, server: Callable[..., Server], tmp_path: Path
) -> None:
    keys = credentials()
    (tmp_path / "account.conf").write_text(keys.trusted)
    theirs = server("-c", str(tmp_path / "account.conf"))

    found = planes.up(torchLoom_ADDR=theirs.url)

    assert (found["nats"], found["note"]) == (theirs.url, "")
    assert set(found["parts"]) == {"weaver", "agent"}


def test_a_weaver_alone_needs_a_nats_of_ours(planes: Planes, server: Callable[..., Server]) -> None:
    foreign = server()

    said = planes.said(planes.start("--only=weaver", LOOM_NATS=foreign.url))

    assert said == {
        "error": f"no NATS server of this plane at {foreign.url}: "
        "it does not know our credentials; `loom up` starts its own",
        "code": "no_broker",
        "exit_code": 1,
    }


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_another_user_reads_neither_keys_nor_sockets(planes: Planes, home: Path) -> None:
    planes.up()
    for folder in home.parents:
        if os.stat(folder).st_uid == os.getuid() and "pytest" in str(folder):
            folder.chmod(0o755)  # the way there is open; what we made must be closed by itself
    secrets = [*(home / "plane" / "keys").rglob("*"), *client.folder().iterdir()]
    assert {path.name for path in secrets} >= {"account.nk", "weaver.sock", "plane.sock", "lock"}

    seen = as_nobody(lambda: {str(path): attempt(path) for path in secrets})

    assert seen == {str(path): "PermissionError" for path in secrets}


def attempt(path: Path) -> str:
    """Try to get at a file or a socket."""
    try:
        if path.suffix == ".sock":
            sockets.connect(path).close()
        else:
            path.open().close()
    except OSError as error:
        return type(error).__name__
    return "got in"


def test_a_plane_whose_folder_is_removed_is_found_again_by_the_next_question(
    planes: Planes,
) -> None:
    before = planes.up()
    ranks = pids()

    shutil.rmtree(client.folder())
    until(lambda: client.find() is not None, 30)
    found = client.find_or_start()

    assert found is not None
    assert (found["home"], found["pid"]) == (before["home"], before["pid"])
    assert not any(alive(pid) for pid in ranks.values() if pid)
    assert client.ask("told")["LOOM_NATS"] == found["nats"]


def test_logs_are_put_aside_while_their_processes_run(planes: Planes, home: Path) -> None:
    planes.up()
    before, logs = pids(), home / "plane" / "logs"
    host = os.uname().nodename
    paths = [logs / f"{host}-{name}.log" for name in ("plane", "weaver", "agent")]
    for path in paths:
        with path.open("ab") as file:
            file.write(b"x" * (5 << 20))

    until(lambda: all(path.stat().st_size < 1 << 20 for path in paths))

    # a look may come while this test still writes, as soon as there are four
    assert all(path.with_suffix(".old").stat().st_size >= 4 << 20 for path in paths)
    assert pids() == before
