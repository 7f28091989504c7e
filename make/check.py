"""Run the checks, a line and a time for each; all of them run, whichever fails first."""

import compileall
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
LINT = (
    ("format", ["ruff", "format", "--check", "--quiet", "."]),
    ("lint", ["ruff", "check", "--quiet", "."]),
    ("import map", ["lint-imports"]),
    ("types", ["mypy", "--no-error-summary"]),  # half a minute in a new checkout, one core
)
WORKERS = max(2, min(8, os.cpu_count() or 2))  # unit tests wait for nothing
SOME_FAILED, NO_TESTS = 1, 5  # what pytest exits with
FAILURES = ROOT / ".build" / "failures.txt"  # the tests that failed, a line each
MEMORY = Path("/dev/shm")  # a file system that no disk is behind
LEAST_FREE = 2**31  # bytes of it; a run of the unit tests leaves a quarter of that
MOST_AGAIN = 5  # tests; where more fail, it is not the company they were in


def main(what: str, room: str = "") -> int:
    """Run what `make check`, `make test` or `make soak` stands for; return the exit code."""
    if what == "check":
        return lint_beside(run_unit_tests)
    if what == "test" and room:
        return run_pytest("not soak", workers=3, room=room, examples=50)
    if what == "test":  # three for two cores: many tests wait
        return lint_beside(partial(run_pytest, "not soak", workers=3, examples=50))
    return run_pytest("soak", workers=0, room=room, examples=1000)


def run_unit_tests() -> int:
    """Run what starts no process; its databases are in memory, where no commit waits for a disk."""
    marker, fewer = "not process and not soak", 25
    with memory_folder(MEMORY, LEAST_FREE) as words:
        return run_pytest(marker, WORKERS, examples=fewer, words=words)


@contextlib.contextmanager
def memory_folder(memory: Path, least_free: int) -> Iterator[list[str]]:
    """Yield the words that have pytest make its folders in memory; none where there is no room."""
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < least_free:
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="loom-", dir=memory) as folder:
        yield ["--basetemp", f"{folder}/t"]


def lint_beside(run_tests: Callable[[], int]) -> int:
    """Run the linters side by side, the slowest beside the tests; return the exit code.

    A clean one is one line, another shows what it said.
    """
    with ThreadPoolExecutor(len(LINT)) as pool:
        *quick, slow = [pool.submit(step, *tool) for tool in LINT]
        failed = [report(each) for each in quick]
        code = run_tests()
        return int(any([*failed, report(slow)])) or code


def report(tool: "Future[tuple[str, bool]]") -> bool:
    """Print what a linter said; return whether it failed."""
    text, has_failed = tool.result()
    print(text, flush=True)
    return has_failed


def step(name: str, words: list[str]) -> tuple[str, bool]:
    """Run one tool; return what there is to say of it, and whether it failed."""
    began = time.monotonic()
    done = subprocess.run(
        [BIN / words[0], *words[1:]],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    failed = done.returncode != 0
    verdict = "FAILED" if failed else "ok"
    line = f"{name:12} {verdict:6} {time.monotonic() - began:5.1f} s"
    return (f"{line}\n{done.stdout}" if failed else line), failed


def run_pytest(
    marker: str, workers: int, room: str = "", *, examples: int, words: Sequence[str] = ()
) -> int:
    """Run the tests that carry (or lack) these marks, of one room or of all.

    Those that try many examples try so many percent of them; the long form of them is more.
    """
    target = ROOT / "tests" / room
    if not target.exists():
        rooms = sorted(path.name for path in (ROOT / "tests").iterdir() if is_room(path))
        print(f"no tests/{room}; there are: {', '.join(rooms)}", file=sys.stderr)
        return 2
    began = time.monotonic()
    compileall.compile_dir(ROOT / "src", quiet=1)  # else each process of each test does, again
    command = ["-m", marker, "-n", str(workers), str(target.relative_to(ROOT))]
    command += ["--dist", "worksteal"] if workers else []
    command += words
    code = pytest(command, examples)
    if code == SOME_FAILED and workers:
        code = run_again_alone(examples)
    if code == NO_TESTS and marker == "soak":
        code = 0
    verdict = "FAILED" if code else "ok"
    print(f"{'tests':12} {verdict:6} {time.monotonic() - began:5.1f} s", flush=True)
    return code


def pytest(words: list[str], examples: int) -> int:
    """Run pytest with these words; return its exit code. What failed is in `FAILURES`."""
    FAILURES.parent.mkdir(exist_ok=True)
    FAILURES.unlink(missing_ok=True)
    env = {
        **os.environ,
        "LOOM_TEST_EXAMPLES": str(examples),
        "LOOM_TEST_FAILURES": str(FAILURES),
    }
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # nor need they do so with the tests themselves
    command = [sys.executable, "-m", "pytest", "-q", *words]
    return subprocess.run(
        command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, check=False
    ).returncode


def run_again_alone(examples: int) -> int:
    """Run the few tests that failed beside others once more, one by one; return the exit code.

    Three workers on two cores starve each other now and then. What fails alone, too, has failed;
    what does not is named, for it still has a fault of its own: it counts on being quick.
    """
    failed = FAILURES.read_text().splitlines() if FAILURES.exists() else []
    if not 0 < len(failed) <= MOST_AGAIN:
        return SOME_FAILED
    print(f"\nonce more, alone: {len(failed)} that failed beside others", flush=True)
    code = pytest(failed, examples)
    still = FAILURES.read_text().splitlines() if FAILURES.exists() else []
    for name in failed:
        print(f"{'FAILED twice' if name in still else 'UNSTEADY':12} {name}", flush=True)
    return code


def is_room(path: Path) -> bool:
    """Say whether this is a folder of tests."""
    return path.is_dir() and any(path.glob("**/test_*.py"))


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
