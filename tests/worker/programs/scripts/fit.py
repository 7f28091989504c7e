"""A Lightning program that trains a tiny model, and knows nothing of torchloom.

It appends what it sees to files of its own: each step with the lr as the optimizer has it, the lr
as the weights show it, and a digest of the weights; and where it ends. It waits before the step
that the file `hold` names, as long as it does.
"""

import hashlib
import importlib
import json
import os
import random
import time
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

pl = importlib.import_module(os.environ.get("PACKAGE", "lightning.pytorch"))
OUT, RANK = Path(os.environ.get("FILES") or os.environ["OUT"]), os.environ.get("RANK", "0")
WORLD, KINDS = int(os.environ.get("WORLD_SIZE", "1")), os.environ.get("KINDS", "").split()
os.environ.setdefault("LOCAL_RANK", RANK)
torch.set_default_dtype(torch.float64)


def append(what, line):
    with (OUT / f"{what}-{RANK}").open("a") as file:
        file.write(json.dumps(line) + "\n")


def digest():
    weights = b"".join(part.detach().numpy().tobytes() for part in model.parameters())
    return hashlib.sha256(weights).hexdigest()


def held():
    try:
        at = int((OUT / "hold").read_text() or 1 << 60)
    except FileNotFoundError:
        return False
    return trainer.global_step >= at


class Samples(Dataset):
    """Samples that are augmented by all the generators that a program has."""

    def __len__(self):
        return len(x)

    def __getitem__(self, at):
        noise = torch.randn(8) + random.random() + np.random.rand()
        return x[at] + 0.1 * noise * ("noisy" in KINDS), x[at].sum(0, keepdim=True)


class Stream(IterableDataset):
    """The same samples in their order, without a length."""

    def __iter__(self):
        return map(Samples().__getitem__, range(len(x)))


class Net(pl.LightningModule):
    def __init__(self, width=16, lr=0.01, more=None):
        super().__init__()
        self.save_hyperparameters()
        parts = nn.Linear(8, width), nn.ReLU(), nn.Dropout(0.2)
        self.net = nn.Sequential(*parts, nn.Linear(width, 1))

    def training_step(self, batch, at):
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, at):
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("val_loss", loss, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        if "plateau" in KINDS:
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        else:
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
        when = {"interval": "step", "monitor": "val_loss", "strict": False}
        return [optimizer], [{"scheduler": schedule, **when}]

    def optimizer_step(self, epoch, at, optimizer, closure):
        while held():
            time.sleep(0.01)
        step, weight = self.trainer.global_step, self.net[3].bias
        own, before = optimizer.param_groups[0]["lr"], weight.detach().clone()
        super().optimizer_step(epoch, at, optimizer, closure)
        moved = (before - weight.detach()) / optimizer.state[weight]["momentum_buffer"]
        append("steps", [os.getpid(), step, own, float(moved), digest()])


more = json.loads(os.environ.get("TRAINER", "{}"))
if "SAVES" in os.environ:
    saves = importlib.import_module(f"{pl.__name__}.callbacks").ModelCheckpoint
    more["callbacks"] = [saves(OUT / "files", **json.loads(os.environ["SAVES"]))]
if "LOGS" in os.environ:
    csv = importlib.import_module(f"{pl.__name__}.loggers").CSVLogger
    more["logger"] = csv(OUT, name="", version=os.environ["LOGS"])
pl.seed_everything(0, verbose=False)
x = torch.randn(96, 8)
model = Net(more=Namespace(depth=2, api_key="not to be seen"))
trainer = pl.Trainer(
    accelerator="cpu",
    devices=WORLD,
    strategy="ddp" if WORLD > 1 else "auto",
    enable_progress_bar=False,
    enable_model_summary=False,
    default_root_dir=OUT,
    **more,
)
generator = torch.Generator().manual_seed(7) if "generator" in KINDS else None
workers = {"num_workers": 1 if "workers" in KINDS else 0, "generator": generator}
if "stream" in KINDS:
    loader = DataLoader(Stream(), 4)
else:
    loader = DataLoader(Samples(), 4, shuffle=True, **workers)
append("starts", os.getpid())
own = {"ckpt_path": os.environ["OWN"], "weights_only": False} if "OWN" in os.environ else {}
trainer.fit(model, loader, DataLoader(Samples(), 32), **own)
append("ends", [trainer.global_step, digest()])
