"""From the SIGKILL of a rank to the first step that is repeated, with 400 MB to be loaded."""

import os
import shutil
import signal
import time
from pathlib import Path

from benchmarks.figure import Figure, Lab, Subject
from benchmarks.launch import RANKS, Launcher, end_zygotes

from torchloom.checkpoint import step_of

PROGRAM = Path(__file__).with_name("checkpoint_restarted.py")


def figure(lab: Lab) -> Figure:
    """Return the figure, beside torchrun in the setting that recovers."""
    lab.at_end.callback(end_zygotes, lab)
    peer = Launcher.torchrun(lab, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    words = ("launch", "--policy", "restart", "-n")
    mine = Launcher(lab, lab.ours / "loom", words, is_warm=True)
    ours, theirs = restart(mine, "loom"), restart(peer, "torch")
    return Figure(
        "kill-to-repeated-step", f"ms to the next step of {RANKS} ranks, 400 MB", ours, theirs
    )


def restart(launcher: Launcher, how: str) -> Subject:
    """Kill rank 1 when something is saved; return when the last rank had repeated a step."""

    def sample() -> float:
        with launcher.start(RANKS, how, "--max-restarts", "1", script=PROGRAM) as started:
            started.until(lambda: saved(launcher.lab, started.folder) != [])
            killed = time.time_ns()
            os.kill(started.steps(1)[0].pid, signal.SIGKILL)
            started.end_well()
            took = (started.last_first_step(1) - killed) / 1e6
        for path in saved(launcher.lab, started.folder):
            shutil.rmtree(path.parent)
        return took

    return launcher.subject(f"{RANKS} --max-restarts 1 {PROGRAM.name} . {how}", sample)


def saved(lab: Lab, folder: Path) -> list[Path]:
    """Return what says that a whole checkpoint is there: the peer's file, or our manifests."""
    ours = (lab.scratch / "home" / "runs").glob("*/checkpoints/ckpt_step_*/manifest.json")
    return [*folder.glob("saved.pt"), *(path for path in ours if step_of(path.parent.name))]
