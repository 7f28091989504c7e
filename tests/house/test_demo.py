"""`make demo`: its acts happen, a failed act is a failed demo, nothing is left behind."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .test_recording import recorded

ROOT = Path(__file__).resolve().parents[2]
BY_PACE = ("loom: cold start", "in a browser", "signs you in")  # printed or not, by the pace
VARIES = (  # what differs from run to run
    (r"-[a-z0-9]{13}\b", "-ID"),
    (r"\b[0-9a-f]{16}\b", "DIGEST"),
    (r"(\d+m)?\d+(\.\d+)? ?m?s\b", "TIME"),
    (r"[\d.]+", "N"),
    (r" +", " "),
    (r"All N acts", "All acts"),
)
SCRIPT = ROOT / "examples/pytorch/train_ddp.py"
CHANGE = r"lr 0\.1 -> 0\.03 at step (\d+) on ranks 0-3, acked in [\d.]+ m?s"

BACK = r"rank 2 back after \d+ ms, 0 steps lost, ranks 0, 1, 3 never stopped"


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the user who plays the demo folders of their own; all of it is short, for sockets."""
    with tempfile.TemporaryDirectory(prefix="own-", dir="/tmp") as name:
        for variable in ("LOOM_HOME", "XDG_RUNTIME_DIR", "TMPDIR"):
            (Path(name) / variable).mkdir(mode=0o700)
            monkeypatch.setenv(variable, str(Path(name) / variable))
        yield Path(name)


def play(tmp_path: Path, script: str | None = None) -> "subprocess.CompletedProcess[str]":
    """Play the demo of a checkout whose training script may be another one."""
    demo = ROOT / "make/demo.py" if script is None else checkout(tmp_path, script)
    env = {**os.environ, "NO_COLOR": "1"}
    words = [sys.executable, str(demo)]
    return subprocess.run(
        words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def checkout(folder: Path, script: str) -> Path:
    """Make a checkout with this training script; return its demo."""
    shutil.copytree(ROOT / "make", folder / "make")
    (folder / "examples/pytorch").mkdir(parents=True)
    (folder / "examples/pytorch/train_ddp.py").write_text(script)
    return folder / "make/demo.py"


def acts(text: str) -> list[str]:
    return [line.split(".")[0] for line in text.splitlines() if line[:1].isdigit()]


def shapes(text: str) -> set[str]:
    """Return the lines of a demo without what differs from run to run."""
    for pattern, shape in VARIES:
        text = re.sub(pattern, shape, text)
    return {line for line in text.splitlines() if not any(part in line for part in BY_PACE)}


@pytest.mark.process
@pytest.mark.needs("torch")
def test_every_act_happens_and_nothing_is_left(tmp_path: Path, own: Path) -> None:
    done = play(tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert acts(done.stdout) == ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"]
    assert "launched, trained a step and ended in" in done.stdout
    assert "the loss fell from" in done.stdout
    changes = re.findall(CHANGE, done.stdout)
    assert len(changes) == 1
    assert f"by their own files, all four ranks changed at step {changes[0]}" in done.stdout
    assert done.stdout.count("weights identical to an undisturbed run: yes") == 2
    assert re.search(BACK, done.stdout)
    assert max(map(len, shapes(done.stdout))) <= 100
    assert shapes("\n".join(recorded())) - shapes(done.stdout) == set()
    assert [path for path in own.rglob("*") if not path.is_dir()] == []  # the user's own folders
    assert list((own / "TMPDIR").glob("loom*")) == []  # torch leaves an empty folder there


@pytest.mark.process
@pytest.mark.needs("torch")
def test_a_rank_that_did_not_change_fails_the_demo(tmp_path: Path, own: Path) -> None:
    done = play(tmp_path, SCRIPT.read_text().replace("used.param_groups[0]['lr']", "0.1"))

    assert done.returncode == 1
    assert "did not change its lr at step" in done.stderr
    assert acts(done.stdout) == ["1", "2", "3", "4", "5", "6"]
    assert list((own / "TMPDIR").glob("loom*")) == []  # torch leaves an empty folder there
    assert processes_naming(str(tmp_path)) == []


@pytest.mark.process
@pytest.mark.needs("torch")
def test_a_loss_that_does_not_fall_fails_the_demo(tmp_path: Path) -> None:
    done = play(tmp_path, "print('step 0 loss 0.5')\nprint('step 1 loss 0.6')\n")

    assert done.returncode == 1
    assert "the loss did not fall" in done.stderr
    assert acts(done.stdout) == ["1", "2"]


@pytest.mark.process
@pytest.mark.needs("torch")
def test_a_failed_run_fails_the_demo(tmp_path: Path) -> None:
    done = play(tmp_path, "raise SystemExit(3)\n")

    assert done.returncode == 1
    assert "ended with code" in done.stderr


@pytest.mark.process
@pytest.mark.needs("torch")
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path) -> None:
    forever = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
    words = [sys.executable, str(checkout(tmp_path, forever))]

    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        up = (line for line in demo.stdout if "up" in line.split())
        for _ in range(4):  # all that will ever be said: nobody meets a broken pipe by writing
            next(up)
        demo.terminate()
        try:
            code = demo.wait(60)
        finally:
            demo.kill()

    assert code == 1
    assert processes_naming(str(tmp_path)) == []


def processes_naming(folder: str) -> list[str]:
    """Return the processes whose environment says their state is in this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"LOOM_HOME={folder}".encode() in entry.read_bytes():
                found.append(entry.parent.name)
        except OSError:
            continue
    return found
