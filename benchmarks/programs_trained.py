"""A small training whose loop is another's: `programs_trained.py FOLDER KIND`.

KIND is `huggingface`, `lightning` or `accelerate`. Each rank appends to the file of its number:
what, process, time, processor time of the main thread. What is `first` (before the imports),
`ready` (the training begins) or the number of a step that has ended.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

FIRST = time.time_ns()  # before the imports, which take longest
FOLDER, KIND, STEPS = Path(sys.argv[1]), sys.argv[2], int(os.environ["STEPS"])
RANK, WORLD = os.environ.get("RANK", "0"), int(os.environ.get("WORLD_SIZE", "1"))
OUT = os.open(FOLDER / RANK, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
WIDTH, BATCH = 64, 8


def note(what: object, at: int = 0) -> None:
    """Append one line, whole."""
    line = f"{what} {os.getpid()} {at or time.time_ns()} {time.thread_time_ns()}\n"
    os.write(OUT, line.encode())


def network() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def samples(count: int) -> Any:
    import torch

    x = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(0))
    return [{"x": row, "labels": row.sum(0, keepdim=True)} for row in x]


def loss_of(network: Any, batch: Any) -> Any:
    from torch.nn import functional

    return functional.mse_loss(network(batch["x"]), batch["labels"])


def huggingface() -> None:
    from torch import nn
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, x: Any, labels: Any) -> Any:
            return {"loss": loss_of(self.network, {"x": x, "labels": labels})}

    class Watching(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            note("ready")

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            note(state.global_step)

    arguments = TrainingArguments(
        str(FOLDER / "files"),
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        save_strategy="no",
        logging_steps=10,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    data = samples(BATCH * WORLD * 500)
    Trainer(Model(), arguments, train_dataset=data, callbacks=[Watching()]).train()


def lightning() -> None:
    import lightning.pytorch as pl
    import torch
    from torch.utils.data import DataLoader

    os.environ.setdefault("LOCAL_RANK", RANK)

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch: Any, at: int) -> Any:
            loss = loss_of(self.network, batch)
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    class Watching(pl.Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            note("ready")

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            note(trainer.global_step)

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=WORLD,
        strategy="ddp" if WORLD > 1 else "auto",
        max_steps=STEPS,
        log_every_n_steps=10,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
        default_root_dir=FOLDER,
        callbacks=[Watching()],
    )
    trainer.fit(Net(), DataLoader(samples(BATCH * WORLD * 500), BATCH, shuffle=True))


def accelerate() -> None:
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    os.environ.setdefault("LOCAL_RANK", RANK)
    accelerator = Accelerator(cpu=True)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(samples(BATCH * WORLD * 500), BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    note("ready")
    step = 0
    while step < STEPS:
        for batch in loader:
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 10 == 0:
                accelerator.log({"loss": loss.item()}, step=step)
            note(step)
            if step == STEPS:
                break
    accelerator.end_training()


if __name__ == "__main__":
    note("first", FIRST)
    {"huggingface": huggingface, "lightning": lightning, "accelerate": accelerate}[KIND]()
