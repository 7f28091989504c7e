"""Show torchLoom at work on this machine, in numbered acts; an act that does not work fails it.

`python make/demo.py 2 6` plays two of the acts; `make recording` does so.
"""

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from losses import LOOM, SAVING, outlive, recover
from stage import (
    BOLD,
    RANKS,
    ROOT,
    NotShown,
    Stage,
    show_command,
    show_result,
    styled,
    until,
)

SCRIPT = "examples/pytorch/train_ddp.py"
JOB = {
    "name": "mnist-ddp-demo",
    "framework": "pytorch",
    "model": "mlp",
    "dataset": "synthetic",
    "resources": {"workers": 4, "gpus_per_worker": 0},
    "distributed": {"strategy": "data_parallel", "backend": "gloo"},
    "hyperparameters": {"batch_size": 64, "lr": 0.001, "epochs": 2},
    "checkpointing": {"enabled": True, "every_n_steps": 200, "store": "local"},
    "compression": {"enabled": False},
}
LOSS = re.compile(r"step\s+(\d+)\s+loss\s+([0-9.]+)")
CHANGED = re.compile(r"^lr 0\.1 -> 0\.03 at step (\d+) on ranks 0-3, acked in \d", re.MULTILINE)


def set_up(stage: Stage) -> None:
    """Say what is used and where it is."""
    show = "import torch; print(torch.__version__, torch.cuda.device_count())"
    said = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    torch, devices = said.stdout.split()
    version = stage.loom("--version").strip()
    if not re.search(r"\d+\.\d+", version):
        raise NotShown("`loom --version` names no version")
    print(f"    Python {platform.python_version()}, torch {torch}, GPUs: {devices}")
    print(f"    environment .venv, state of this demo {os.path.relpath(stage.home, ROOT)}")


def train(stage: Stage) -> None:
    """Train with four processes; the script's own losses must fall."""
    losses = [float(value) for _, value in LOSS.findall(stage.loom("run", "-n", "4", SCRIPT))]
    if len(losses) < 2 or not losses[-1] < losses[0]:
        raise NotShown(f"the loss did not fall: {losses}")
    show_result(f"the loss fell from {losses[0]:.4f} to {losses[-1]:.4f}")


def look(stage: Stage) -> None:
    """Ask for the run's state, from another process than the one that started it."""
    shown = stage.loom("show", "@")
    print()
    listed = stage.loom("ls")
    if not all("COMPLETED" in text for text in (shown, listed)):
        raise NotShown("the run is not shown as succeeded")


def read_logs(stage: Stage) -> None:
    """Read what one rank wrote."""
    text = stage.loom("logs", "@", "--ranks", "2")
    if "rank 2 of 4" not in text or "rank 1 of 4" in text:
        raise NotShown("the log of rank 2 is not there, or not alone")


def start_again(stage: Stage) -> None:
    """Launch once more: the first run has left a warm interpreter behind."""
    began = time.monotonic()
    text = stage.loom("launch", "-n", "4", SCRIPT, "--steps", "1")
    if not LOSS.search(text):
        raise NotShown("the launched ranks trained no step")
    show_result(f"launched, trained a step and ended in {time.monotonic() - began:.1f} s")


def steer(stage: Stage) -> None:
    """Change the learning rate of four ranks from here; each writes down what it used."""
    trace = stage.home / "lr"
    words = ("--steps", "999999", "--lr", "0.1", "--trace", str(trace))
    stage.loom("run", "-d", "-n", str(len(RANKS)), SCRIPT, *words)
    until(lambda: ranks_with_lr(stage) == list(RANKS))  # importing, meeting, a first step
    show_command(f"{LOOM} set lr=0.03")
    changed = CHANGED.search(stage.loom("set", "lr=0.03"))
    if not changed:
        raise NotShown("no step is named at which all ranks took the new lr")
    step = int(changed[1])
    files = [trace / f"rank-{rank}" for rank in RANKS]
    until(lambda: all(step in used(file) for file in files))
    for rank, file in zip(RANKS, files, strict=True):
        rates = used(file)
        print(f"    rank {rank} wrote: lr {rates[step - 1]} in step {step - 1}, ", end="")
        print(f"{rates[step]} in step {step}")
        if any(rate != (0.1 if number < step else 0.03) for number, rate in rates.items()):
            raise NotShown(f"rank {rank} did not change its lr at step {step}, and there alone")
    show_result(f"by their own files, all four ranks changed at step {step}")


def ranks_with_lr(stage: Stage) -> list[int]:
    """Return the ranks whose lr can be changed by now."""
    knobs = json.loads(stage.ask("set", "--json") or "[]")
    return next((knob["ranks"] for knob in knobs if knob["name"] == "lr"), [])


def used(file: Path) -> dict[int, float]:
    """Return the learning rate of every step that a rank has written down."""
    whole = file.read_text().rpartition("\n")[0]
    return {int(step): float(rate) for step, rate in map(str.split, whole.splitlines())}


def submit(stage: Stage) -> None:
    """Submit a job over HTTP, as any program could, and read its state and its metrics."""
    plane = json.loads(stage.ask("up", "--json") or "{}")
    token = Path(plane["token_file"]).read_text().strip()

    def api(path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(plane["url"] + path, data)
        asked.add_header("Authorization", f"Bearer {token}")
        asked.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise NotShown(f"{path} was answered with {error}: {error.read().decode()}") from error

    job = api("/api/jobs", JOB)
    print(f"    {job['job_id']}  {job['status']}  {plane['url']}/jobs/{job['id']}", flush=True)
    until(lambda: api(f"/api/jobs/{job['id']}")["status"] not in ("QUEUED", "RUNNING"))
    ended = api(f"/api/jobs/{job['id']}")
    print(f"    {job['job_id']}  {ended['status']} after {ended['step']} steps of 4 workers")
    until(lambda: api(f"/api/experiments/{job['run_id']}")["summary"] is not None)
    accuracy = api(f"/api/experiments/{job['run_id']}")["summary"]["metrics"]["accuracy"]
    if ended["status"] != "COMPLETED" or accuracy["last"] < 0.5:
        raise NotShown(f"the job did not learn: {ended['status']}, accuracy {accuracy['last']}")
    show_result(f"by GET /api/experiments/{job['run_id']}: accuracy {accuracy['last']:.3f}")
    saved = f"/api/jobs/{job['id']}/checkpoints"
    until(lambda: api(saved)["items"][0]["state"] == "committed")  # the last one, of the end
    steps = [one["step"] for one in api(saved)["items"] if one["state"] == "committed"]
    if 200 not in steps:
        raise NotShown(f"no checkpoint of step 200 was kept: {steps}")
    show_result(f"by GET {saved}: steps {', '.join(map(str, steps))}")


def stop(stage: Stage) -> None:
    """End the job."""
    if "CANCELLED" not in stage.loom("stop", "@"):
        raise NotShown("the job did not end")


def down(stage: Stage) -> None:
    """End the plane."""
    if "down" not in stage.loom("down"):
        raise NotShown("the plane did not end")


ACTS: tuple[tuple[str, str, Callable[[Stage], None]], ...] = (
    ("Show what this demo uses.", f"{LOOM} --version", set_up),
    ("Train a small model with four processes (DDP).", f"{LOOM} run -n 4 {SCRIPT}", train),
    ("Show the run from any shell.", f"{LOOM} show @; {LOOM} ls", look),
    ("Read the log of one rank.", f"{LOOM} logs @ --ranks 2", read_logs),
    (
        "Launch again, with torchrun's options: torch is already imported.",
        f"{LOOM} launch -n 4 {SCRIPT} --steps 1",
        start_again,
    ),
    (
        "Change the learning rate of four ranks while they train.",
        f"{LOOM} run -d -n 4 {SCRIPT} --lr 0.1 ...",
        steer,
    ),
    ("Stop the job.", f"{LOOM} stop @", stop),
    (
        "Kill a rank with -9: all ranks restart from the last checkpoint.",
        f"{LOOM} run -d -n 4 --policy restart --max-retries 3 {SAVING}",
        recover,
    ),
    (
        "Kill a rank with -9: a new one takes its place, the others keep running.",
        f"{LOOM} run -d -n 4 {SAVING}",
        outlive,
    ),
    (
        "Submit a job over HTTP.",
        "curl URL/api/jobs -H 'Authorization: Bearer ...' -d @mnist-ddp-demo.json",
        submit,
    ),
    ("Stop the plane, which watched all of these runs.", f"{LOOM} down", down),
)
NEXT = (
    (f"{LOOM} run -n 2 train.py --your-flags", "your own script, unchanged"),
    (f"{LOOM} run -d -n 2 {SCRIPT} --steps 20000", "in the background"),
    (f"{LOOM} logs -f @", "follow it"),
    (f"{LOOM} open @", "see it in a browser (`make dashboard` builds that page)"),
    (f"{LOOM} set lr=0.003", "change it; without values: what can be changed"),
    (f"{LOOM} pause; {LOOM} resume", "pause all its ranks at one step, and resume"),
    (f"{LOOM} stop @", "stop it"),
    (f"{LOOM} plan dist.ddp -j 1x2 --script train.py", "see what would run"),
    (f"{LOOM} down", "end the plane that watches your runs"),
    (f"{LOOM} --help", "everything else"),
)


def main(numbers: list[str]) -> int:
    """Play all acts or those with these numbers; return 0 when they worked and nothing is left."""
    signal.signal(signal.SIGTERM, _stop)
    acts = [ACTS[int(number) - 1] for number in numbers] or list(ACTS)
    began = time.monotonic()
    build = ROOT / ".build"
    build.mkdir(exist_ok=True)
    stage = Stage(Path(tempfile.mkdtemp(prefix="demo-", dir=build)))
    failure = "the demo was interrupted"
    try:
        stage.arm()
        for number, (what, typed, act) in enumerate(acts, 1):
            print("\n" + styled(f"{number}. {what}", BOLD))
            show_command(typed)
            act(stage)
        failure = ""
    except NotShown as error:
        failure = str(error)
    except (KeyboardInterrupt, SystemExit):
        print()
    finally:
        left = stage.clear()
    failure = failure or (f"left behind: {', '.join(left)}" if left else "")
    if failure:
        return fail(stage, failure)
    shutil.rmtree(stage.home)
    show_end(len(acts), with_next=not numbers, seconds=time.monotonic() - began)
    return 0


def show_end(count: int, *, with_next: bool, seconds: float) -> None:
    """Print how many acts worked and, after all of them, what to try next."""
    if with_next:
        print(f"\n{styled('Next commands to try:', BOLD)}")
        for command, what in NEXT:
            print(f"  {command}\n      {what}")
    print(f"\nAll {count} acts worked, no process is left ({seconds:.0f} s).")


def fail(stage: Stage, failure: str) -> int:
    """Print what failed; the demo's state is kept, to be examined."""
    kept = os.path.relpath(stage.home, ROOT)
    print(f"demo: {failure} (its state is kept in {kept})", file=sys.stderr)
    return 1


def _stop(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(143)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
