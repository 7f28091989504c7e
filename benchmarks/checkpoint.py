"""Checkpoints: what a save costs the training, how fast it is on disk, how fast it is back.

The same training process (checkpoint_trainer.py) does all of it, by turns, beside a plain copy,
`torch.save` and torch's distributed checkpoints. A stall is the time that the 50 steps after the
trigger took longer than such steps take undisturbed.
"""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from benchmarks import checkpoint_restart
from benchmarks.figure import CannotMeasure, Figure, Lab, Subject, asked, once

SAMPLES = 40
FEW = 20  # of what differs by more than its noise
SIZE = 400 * 10**6  # bytes of state
PROGRAM = Path(__file__).with_name("checkpoint_trainer.py")
COMMANDS = {
    "copy": "buffer.copy_(tensor) of every tensor, into memory that is there",
    "loom": "saver.save(step, state, ...)",
    "torch-save": "torch.save(state, path)",
    "dcp-save": "dcp.save(state, checkpoint_id=path)",
    "dcp-async": "dcp.async_save(state, checkpoint_id=path, async_stager=kept)",
    "durable": "saver.save(step, state, ...); saver.wait()",
    "load": "load(storage, step, 0, 1), and every tensor copied to where the training has it",
    "torch-load": "blake3().update_mmap(path); torch.load(path, weights_only=True)",
}


def figures(lab: Lab) -> list[Figure]:
    """Return the figures of saving and loading."""

    @once
    def trainer() -> "subprocess.Popen[str]":
        return lab.at_end.enter_context(training(lab))

    def subject(what: str, name: str = "torch", most: int = FEW) -> Subject:
        number = version("torch") if name == "torch" else ""
        ended = f"the trainer ended at {what!r}"
        return Subject(COMMANDS[what], lambda: asked(trainer(), what, ended), name, number, most)

    ours = subject("loom", "loom", SAMPLES)
    stall = "ms that 50 steps took longer, 400 MB"
    return [
        Figure("stall-copy", stall, ours, subject("copy", most=SAMPLES)),
        Figure("stall-dcp", stall, ours, subject("dcp-save")),
        Figure("stall-async", stall, ours, subject("dcp-async")),
        Figure("stall-torch-save", stall, ours, subject("torch-save")),
        Figure("durable", "ms until 400 MB are on disk", subject("durable", "loom"), disk(lab)),
        Figure("load", "ms to verify and load", subject("load", "loom"), subject("torch-load")),
        checkpoint_restart.figure(lab),
    ]


def disk(lab: Lab) -> Subject:
    """Return what the disk does with as many bytes."""
    block = 10**6
    words = ["dd", "if=/dev/zero", "of=dd.bin", f"bs={block}", f"count={SIZE // block}"]
    words.append("conv=fdatasync")

    def sample() -> float:
        (lab.scratch / "dd.bin").unlink(missing_ok=True)
        began = time.perf_counter()
        code = subprocess.run(
            words, cwd=lab.scratch, stderr=subprocess.DEVNULL, check=False
        ).returncode
        if code:
            raise CannotMeasure(f"dd ended with code {code}")
        return (time.perf_counter() - began) * 1000

    return Subject(" ".join(words), sample, "dd", most=FEW)


@contextlib.contextmanager
def training(lab: Lab) -> Iterator["subprocess.Popen[str]"]:
    """Start the trainer; it is gone at the end, and so are its files."""
    folder = lab.scratch / "checkpoints"
    folder.mkdir()
    command = [str(lab.ours / "python"), str(PROGRAM), str(folder), str(SIZE)]
    with subprocess.Popen(
        command,
        env=dict(lab.env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
