"""What is saved in the checkpoint bench: a training process that does one thing for each line.

checkpoint_trainer.py FOLDER BYTES

The state is a transformer's with AdamW; the steps are a smaller model's, about ten milliseconds
each, so that 50 of them last as long as the writing. That model fits into a processor's cache: how
fast the memory of a shared machine is changes by the second, and by more than what is measured.
It answers each line with milliseconds.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from blake3 import blake3
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from torchloom.checkpoint import Draft, LocalStorage, Manifest, Shard
from torchloom.worker.saving import Saver, load

STEPS = 50
WIDTH = 512
LAYER = 12 * WIDTH * WIDTH * 4 * 3  # bytes: the matrices of a layer, and what AdamW keeps of them


def main(folder: Path, size: int) -> None:
    """Serve until there is no more line."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    trainer = Trainer(folder, size)
    actions: dict[str, Callable[[], float]] = {
        "copy": lambda: trainer.stall(trainer.copy),
        "loom": lambda: trainer.stall(trainer.save),
        "torch-save": lambda: trainer.stall(trainer.torch_save),
        "dcp-save": lambda: trainer.stall(trainer.dcp_save),
        "dcp-async": lambda: trainer.stall(trainer.dcp_async_save),
        "durable": trainer.durable,
        "load": trainer.load,
        "torch-load": trainer.torch_load,
    }
    for line in sys.stdin:
        print(actions[line.strip()](), flush=True)
        trainer.tidy()


class Trainer:
    """State, steps, and the ways to save."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.state = state_of(size)
        tensors = list(leaves(self.state))
        self.pairs = [(torch.empty_like(tensor).zero_(), tensor) for tensor in tensors]
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.storage = LocalStorage(str(folder / "loom"))
        self.saver = Saver(
            self.storage,
            rank=0,
            world_size=1,
            generation=0,
            attempt=0,
            report=lambda *what: self.told.append(what),
        )
        self.saver.prepare(self.state, {})
        self.at = 0
        self.kept: tuple[LocalStorage, int] | None = None  # what is loaded, and its step
        quick = StagingOptions(
            use_pinned_memory=False,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=False,
        )
        self.stager = DefaultStager(quick)  # kept, so that its buffers are
        self.model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        self.batch = torch.randn(1024, 256)
        self.steps()

    def stall(self, save: Callable[[], Callable[[], object]]) -> float:
        """Return the time that the steps from a save on took longer than undisturbed ones.

        What else goes on here only ever slows steps down: of those before and those after, the
        quicker are the undisturbed ones.
        """
        before = self.steps()
        began = time.perf_counter()
        drain = save()
        disturbed = time.perf_counter() - began + self.steps()
        drain()
        return (disturbed - min(before, self.steps())) * 1000

    def steps(self) -> float:
        """Train for some steps; return how long they took."""
        began = time.perf_counter()
        for _ in range(STEPS):
            self.optimizer.zero_grad()
            self.model(self.batch).square().mean().backward()
            self.optimizer.step()
        return time.perf_counter() - began

    # The ways: each returns how to wait for what goes on behind the steps.

    def copy(self) -> Callable[[], object]:
        for place, tensor in self.pairs:
            place.copy_(tensor)
        return lambda: None

    def save(self) -> Callable[[], object]:
        self.at += 1
        self.saver.save(self.at, self.state, {}, {})
        return self.written

    def torch_save(self) -> Callable[[], object]:
        torch.save(self.state, self.folder / "torch.pt")
        return lambda: None

    def dcp_save(self) -> Callable[[], object]:
        dcp.save(self.state, checkpoint_id=str(self.folder / "dcp"))
        return lambda: None

    def dcp_async_save(self) -> Callable[[], object]:
        done = dcp.async_save(
            self.state, checkpoint_id=str(self.folder / "dcp"), async_stager=self.stager
        )
        return done.result  # type: ignore[union-attr]

    # What is on disk.

    def durable(self) -> float:
        """Return how long it takes from the call until every byte would survive a power cut."""
        began = time.perf_counter()
        self.save()()
        return (time.perf_counter() - began) * 1000

    def load(self) -> float:
        """Return how long it takes until verified state is where the training has it."""
        storage, step = self.committed()
        began = time.perf_counter()
        loaded = load(storage, step, 0, 1)
        for (place, _), tensor in zip(self.pairs, leaves(loaded.shared), strict=True):
            place.numpy()[...] = tensor.numpy()  # by one thread, as the peer's
        return (time.perf_counter() - began) * 1000

    def torch_load(self) -> float:
        """Return how long the same bytes take without us: to hash, and to load."""
        storage, step = self.committed()
        path = Path(storage.place_of(step), "worker_0.pt")
        began = time.perf_counter()
        blake3().update_mmap(path).hexdigest()
        torch.load(path, weights_only=True)
        return (time.perf_counter() - began) * 1000

    def committed(self) -> tuple[LocalStorage, int]:
        """Return a checkpoint that is there for good, and is in the page cache."""
        if self.kept is None:
            self.commit()
            root = self.folder.with_name("kept")
            Path(self.storage.root).rename(root)
            self.kept = LocalStorage(str(root)), self.at
        self.kept[0].verify(self.kept[1])
        return self.kept

    def commit(self) -> None:
        """Save and commit a checkpoint."""
        self.save()()
        kind, facts = self.told[-1]
        assert kind == "checkpoint_shard", facts
        shard = Shard(facts["name"], facts["size"], facts["hash"], 0)
        manifest = Manifest(
            **dict.fromkeys(("job_id", "run_id", "strategy", "backend"), "bench"),
            **dict.fromkeys(("epoch", "generation", "attempt"), 0),
            step=self.at,
            world_size=1,
            shards=(shard,),
            optimizer_state=True,
            rng_state=False,
            created_at=datetime.now(UTC).isoformat(),
        )
        self.storage.commit(Draft(self.at, 0, 0), manifest)

    def written(self) -> None:
        if not self.saver.wait(60):
            raise RuntimeError(f"not written: {self.told[-1:]}")

    def tidy(self) -> None:
        """Delete what was written."""
        for entry in self.folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        os.sync()


def state_of(size: int) -> dict[str, Any]:
    """Return a transformer and its optimizer, of about so many bytes, after one step."""
    layers = [
        nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True)
        for _ in range(round(size / LAYER))
    ]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(1, 4, WIDTH)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def leaves(state: Any) -> Any:
    """Yield the tensors of a state."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for item in state.values():
            yield from leaves(item)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
