"""Run the checks, a line and a time for each; all of them run, whichever fails first."""

import compileall
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
LINT = (
    ("format", ["ruff", "format", "--check", "--quiet", "."]),
    ("lint", ["ruff", "check", "--quiet", "."]),
    ("types", ["mypy", "--no-error-summary"]),
    ("import map", ["lint-imports"]),
)
NO_TESTS = 5


def main(what: str, room: str = "") -> int:
    """Run what `make check`, `make test` or `make soak` stands for; return the exit code."""
    if what == "check":
        return lint() | run_pytest("not process and not soak", workers=2, examples=25)
    if what == "test" and room:
        return run_pytest("not soak", workers=3, room=room)
    if what == "test":
        return lint() | run_pytest("not soak", workers=3)  # for two cores: many tests wait
    return run_pytest("soak", workers=0, room=room)


def lint() -> int:
    """Run the linters side by side; a clean one is one line, another shows what it said."""
    failed = False
    with ThreadPoolExecutor(len(LINT)) as pool:
        for text, has_failed in pool.map(lambda tool: step(*tool), LINT):
            print(text, flush=True)
            failed = failed or has_failed
    return int(failed)


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


def run_pytest(marker: str, workers: int, room: str = "", examples: int = 100) -> int:
    """Run the tests that carry (or lack) these marks, of one room or of all.

    Those that try many examples try so many percent of them.
    """
    target = ROOT / "tests" / room
    if not target.exists():
        rooms = sorted(path.name for path in (ROOT / "tests").iterdir() if is_room(path))
        print(f"no tests/{room}; there are: {', '.join(rooms)}", file=sys.stderr)
        return 2
    began = time.monotonic()
    compileall.compile_dir(ROOT / "src", quiet=1)  # else each process of each test does, again
    words = ["-q", "-m", marker, "-n", str(workers), str(target.relative_to(ROOT))]
    words += ["--dist", "worksteal"] if workers else []
    command = [sys.executable, "-m", "pytest", *words]
    env = {**os.environ, "LOOM_TEST_EXAMPLES": str(examples)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # nor need they do so with the tests themselves
    done = subprocess.run(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, check=False)
    code = done.returncode
    if code == NO_TESTS and marker == "soak":
        code = 0
    verdict = "FAILED" if code else "ok"
    print(f"{'tests':12} {verdict:6} {time.monotonic() - began:5.1f} s", flush=True)
    return code


def is_room(path: Path) -> bool:
    """Say whether this is a folder of tests."""
    return path.is_dir() and any(path.glob("**/test_*.py"))


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
