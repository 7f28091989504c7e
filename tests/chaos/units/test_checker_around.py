"""What the databases, the kernel and the logs show: edges, doubles, leftovers, growth, secrets."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from torchloom.chaos.checker import promises
from torchloom.chaos.checker.promises import PromiseAnswer, PromiseVerdict, broken, held, unknown

from .staged import AGAIN, JOB, Stage, age


def test_a_clean_run_breaks_nothing(stage: Stage) -> None:
    found = stage.judged()

    assert {one.name: one.answer for one in found.verdicts} == {
        **{f"I{n}": PromiseAnswer.HELD for n in range(1, 10)},
        "I10": PromiseAnswer.UNKNOWN,
    }
    assert found.is_exact is True
    assert found.state == "SUCCEEDED"


def test_an_edge_that_does_not_exist_is_found(stage: Stage) -> None:
    stage.turn(AGAIN + 9, "COMPLETED", "RUNNING", "late")
    stage.sql("state", "update jobs set state = 'RUNNING'")

    assert stage.broken() == {"I5": "event 7: COMPLETED -> RUNNING (late)"}


def test_a_change_that_nobody_noted_is_found(stage: Stage) -> None:
    stage.sql("state", "delete from events where seq = 4")

    assert stage.broken() == {
        "I5": "the job was RECOVERING, but the next event goes from RUNNING to COMPLETED"
    }


def test_a_row_that_its_events_do_not_give_is_found(stage: Stage) -> None:
    stage.sql("state", "update jobs set state = 'FAILED'")

    assert stage.broken() == {"I5": "the job is FAILED, but its events end with COMPLETED"}


def test_a_job_that_is_resumed_may_go_on(stage: Stage) -> None:
    stage.turn(AGAIN + 9, "COMPLETED", "QUEUED", "resumed_by_ada")
    stage.sql("state", "update jobs set state = 'QUEUED'")

    assert stage.broken() == {}


def test_a_command_that_was_applied_twice_is_found(stage: Stage) -> None:
    stage.event(AGAIN + 2, "command_applied", "", command="c1")

    assert stage.broken() == {"I7": "command c1 was applied 2 times"}


def test_a_record_that_is_stored_twice_is_found(stage: Stage) -> None:
    stage.told("a0", 2, "note", AGAIN)
    stage.told("a0", 2, "note", AGAIN)

    assert stage.broken() == {"I7": "record (0, 'a0', 2) is stored 2 times"}


def test_a_life_that_begins_twice_is_found(stage: Stage) -> None:
    stage.told("a0", 9, "init", AGAIN)

    assert stage.broken() == {"I7": "incarnation a0 began 2 times"}


def test_without_a_database_nobody_knows(stage: Stage) -> None:
    stage.home.joinpath("plane", "state.db").unlink()

    found = {one.name: one for one in stage.judged().verdicts}

    why = "the database cannot be read: unable to open database file"
    assert (found["I5"], found["I7"]) == (unknown("I5", why), unknown("I7", why))


def test_a_process_that_outlives_its_job_is_found(stage: Stage) -> None:
    stage.process(300, 1, f"LOOM_JOB={JOB}", words=["python", "left.py"])

    assert stage.broken() == {"I8": "process 300 is still running: python left.py"}


def test_a_rank_that_hides_its_job_is_found_by_its_own_ledger(stage: Stage) -> None:
    stage.process(201, 9)

    assert stage.broken() == {"I8": "process 201 is still running: python"}


def test_shared_memory_that_is_left_is_found(stage: Stage) -> None:
    stage.shm.joinpath(f"loom-{JOB}-0").mkdir()

    assert stage.broken() == {"I8": f"{stage.shm}/loom-{JOB}-0 still exists"}


def test_a_draft_is_left_behind_only_when_it_is_old(stage: Stage) -> None:
    draft = stage.run / "checkpoints" / "ckpt_step_00012.g2-0"
    draft.mkdir()
    assert stage.broken() == {}

    age(draft, 90)

    assert stage.broken() == {"I8": "ckpt_step_00012.g2-0 was begun 90 s ago and never committed"}


@pytest.mark.parametrize(
    ("lives", "expected"),
    [
        (("1",), held("I8", "for ended incarnations; the job is still running")),
        (("1", "2"), broken("I8", "process 300 of an earlier incarnation of rank 1 is running")),
    ],
)
def test_while_a_job_runs_only_lives_that_have_ended_leave_something_behind(
    stage: Stage, lives: tuple[str, ...], expected: PromiseVerdict
) -> None:
    stage.state("RUNNING")
    stage.process(299, 1, f"LOOM_JOB={JOB}", "RANK=0", "LOOM_LIFE=1")
    for number, life in enumerate(lives):
        stage.process(300 + number, 1, f"LOOM_JOB={JOB}", "RANK=1", f"LOOM_LIFE={life}")

    found = {one.name: one for one in stage.judged().verdicts}

    assert found["I8"] == expected


def test_a_part_that_eats_memory_is_found(stage: Stage) -> None:
    home = f"LOOM_HOME={stage.home}"
    words = ["python", "-m", "torchloom.weaver"]
    stage.process(400, 2, home, words=words, pages=1000)
    checker = stage.checker()
    stage.process(400, 2, home, words=words, pages=1000 + promises.MEMORY // 4096 + 1)

    checker.look(2)
    facts = {one.name: one.fact for one in checker.verdicts()}

    assert facts["I9"] == "after fault 2 the weaver has 515 MiB of memory"


def test_a_spool_without_a_limit_is_found(stage: Stage) -> None:
    checker = stage.checker()
    spool = stage.home / "plane" / "spool" / "life"
    spool.mkdir(parents=True)
    with (spool / "1").open("wb") as file:
        file.truncate(promises.SPOOL + (1 << 20))

    checker.look(2)
    facts = {one.name: one.fact for one in checker.verdicts()}

    assert facts["I9"] == "after fault 2 spools have 273 MiB"


def test_a_secret_in_a_log_is_found(stage: Stage) -> None:
    log = stage.run / "logs" / "stdout.log"
    log.write_text("calling with a-token-nobody-may-see\n")

    assert stage.broken() == {"I10": f"a secret is in runs/{JOB}/logs/stdout.log"}


@contextmanager
def serving(status: int, body: bytes) -> Iterator[str]:
    """Answer every question alike."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_answer_that_broke_down_is_found(stage: Stage) -> None:
    with serving(500, b"{}") as url:
        assert stage.broken(api=url) == {"I10": f"/api/jobs/{JOB}: the reply was 500"}


def test_an_answer_without_a_field_is_found(stage: Stage) -> None:
    with serving(200, b'{"id": "x", "items": []}') as url:
        assert stage.broken(api=url) == {"I10": f"/api/jobs/{JOB}: no attempt in the reply"}


def test_a_plane_that_is_away_is_no_wrong_answer(stage: Stage) -> None:
    with serving(503, b"{}") as url:
        assert stage.broken(api=url) == {}
