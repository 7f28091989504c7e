"""The command line: how long commands take, and what waiting for a run costs.

Commands are timed from outside, as a shell sees them. Every peer runs as its users run it: an
installed console script, byte code compiled, files in the page cache.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from benchmarks.figure import CannotMeasure, Figure, Lab, Subject

SAMPLES = 15
DDP = ("dist.ddp", "-j", "1x2", "--script", "x.py")
APPS = 10_000
WINDOW = 10.0  # seconds over which an idle waiter's wake-ups are counted

# The app: blocks until somebody opens the pipe, then leaves the time as its last act.
APP = """
import os, sys, time
open(sys.argv[1]).close()
with open(sys.argv[2], "w") as file:
    file.write(str(time.monotonic_ns()))
os._exit(0)
"""
# The waiter: says when it starts to wait, and at what time it knew of the end.
WAITER = """
import sys, time
from torchloom.runner.api import get_runner
runner = get_runner()
print("waiting", flush=True)
runner.wait(sys.argv[1])
print(time.monotonic_ns(), flush=True)
"""
# One real run, then its record under other names, written by the product's own code.
FILL = """
import sys
from dataclasses import replace
from torchloom.launch.records.folder import RunFolder, all_folders
(first,) = all_folders()
app, request, record = first.app(), first.request(), first.record()
for number in range(1, int(sys.argv[1])):
    name = f"{request.app_id}{number}"
    RunFolder.create(
        replace(request, app_id=name), app, replace(record, id=name)
    ).publish()
"""


def figures(lab: Lab) -> list[Figure]:
    """Return the figures of the command line."""
    (lab.scratch / "x.py").write_text("print('never run')\n")
    loom, torchrun, torchx = lab.ours / "loom", lab.peers / "torchrun", lab.peers / "torchx"
    lab.at_end.callback(run, loom, "down", env=lab.env)

    def ours(*words: str) -> Subject:
        return Subject(f"loom {' '.join(words)}", lab.timed(loom, *words))

    dryrun = ("run", "--dryrun", "-s", "local_cwd", *DDP)
    peer_help = Subject(
        "torchrun --help", lab.timed(torchrun, "--help"), "torchrun", version(lab, "torch")
    )
    peer_plan = Subject(
        f"torchx {' '.join(dryrun)}",
        lab.timed(torchx, *dryrun),
        "torchx-nightly",
        version(lab, "torchx-nightly"),
    )
    plan = ours("plan", *DDP)
    return [
        Figure("help", "ms", ours("--help"), peer_help),
        Figure("version", "ms", ours("--version"), peer_help),
        Figure("completion", "ms", ours("completion", "bash"), peer_help),
        Figure("plan", "ms", plan, peer_plan),
        Figure("plan-and-torchrun", "ms", plan, peer_help),
        Figure("ls-10000", "ms", Subject("loom ls", ls_among_many(lab))),
        Figure("wait", "ms after the exit", Subject("Runner.wait", partial(wait_latency, lab))),
        Figure("wait-wakeups", "wake-ups/s", Subject("Runner.wait", idle_wakeups(lab))),
    ]


def version(lab: Lab, package: str) -> str:
    """Return the version of a peer, or nothing when it is not installed."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    try:
        return run(lab.peers / "python", "-c", code)
    except CannotMeasure:
        return ""


def ls_among_many(lab: Lab) -> Callable[[], float]:
    """Return a sampler of `loom ls` in a state folder with ten thousand ended apps."""
    crowded = replace(lab, env={**lab.env, "LOOM_HOME": str(lab.scratch / "crowded")})
    lab.at_end.callback(run, lab.ours / "loom", "down", env=crowded.env)
    sample = crowded.timed(lab.ours / "loom", "ls")

    @cache
    def fill() -> None:
        run(lab.ours / "loom", "run", "utils.echo", "--msg", "hello", env=crowded.env)
        run(lab.ours / "python", "-c", FILL, str(APPS), env=crowded.env)

    def after_filling() -> float:
        fill()
        return sample()

    return after_filling


def wait_latency(lab: Lab) -> float:
    """Return the milliseconds between an app's last act and the return of `Runner.wait`."""
    with app(lab) as (handle, end_app), waiter(lab, handle) as process:
        time.sleep(0.3)  # it must be idle, not still on its way in
        ended = end_app()
        assert process.stdout is not None
        return (int(process.stdout.readline()) - ended) / 1e6


def idle_wakeups(lab: Lab) -> Callable[[], float]:
    """Return a sampler of wake-ups a second; all waiters are watched in one window."""

    @cache
    def watched() -> Iterator[float]:
        with contextlib.ExitStack() as stack:
            handle, end_app = stack.enter_context(app(lab))
            waiters = [stack.enter_context(waiter(lab, handle)) for _ in range(lab.n + 1)]
            time.sleep(1.0)
            before = [switches(process.pid) for process in waiters]
            time.sleep(WINDOW)
            after = [switches(process.pid) for process in waiters]
            end_app()
        return iter([(b - a) / WINDOW for a, b in zip(before, after, strict=True)])

    return lambda: next(watched())


def switches(pid: int) -> int:
    """Return how often the threads of a process gave up the processor of themselves."""
    try:
        texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    except OSError as error:
        raise CannotMeasure(f"the kernel does not count wake-ups here: {error}") from error
    lines = itertools.chain.from_iterable(text.splitlines() for text in texts)
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))


@contextlib.contextmanager
def app(lab: Lab) -> Iterator[tuple[str, Callable[[], int]]]:
    """Run an app that blocks; yield its handle and what ends it and returns the time it left."""
    folder = lab.scratch / f"app-{time.monotonic_ns()}"
    folder.mkdir()
    pipe, stamp, script = folder / "pipe", folder / "stamp", folder / "app.py"
    os.mkfifo(pipe)
    script.write_text(APP)
    words = ("run", "-d", "--json", str(script), str(pipe), str(stamp))
    handle = read_handle(run(lab.ours / "loom", *words, env=lab.env))

    def end() -> int:
        with open(pipe, "w"):
            pass
        while not (stamp.exists() and stamp.read_text()):
            time.sleep(0.001)
        return int(stamp.read_text())

    try:
        yield handle, end
    finally:
        if not stamp.exists():
            run(lab.ours / "loom", "stop", "--now", handle, env=lab.env)


def read_handle(text: str) -> str:
    """Return the handle in what `loom run -d --json` printed."""
    return str(json.loads(text)["handle"])


@contextlib.contextmanager
def waiter(lab: Lab, handle: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a process that waits for the app, and yield it when it is about to."""
    command = [str(lab.ours / "python"), "-c", WAITER, handle]
    with subprocess.Popen(
        command, env=dict(lab.env), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "waiting\n":
            raise CannotMeasure("the waiting process did not start")
        try:
            yield process
        except BaseException:
            process.kill()
            raise
        process.stdout.read()


def run(program: Path, *words: str, env: Mapping[str, str] | None = None) -> str:
    """Run a command that must succeed and return what it printed."""
    try:
        return subprocess.run(
            [str(program), *words],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        print(getattr(error, "stderr", ""), file=sys.stderr)
        raise CannotMeasure(f"{program.name} {' '.join(words)[:60]}: {error}"[:200]) from error
