"""A script that trains a tiny model with Lightning, and knows nothing of torchloom.

It appends what it sees to files of its own: its processes, a digest of the weights after each
step, and where it ends. Ranks die where `DIE` says (rank, place, step, micro-batch), each once; at
the place that `BREAK` names, a rank gets an error as if a peer had died.
"""

import hashlib
import json
import os
import signal
import time
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset

OUT, RANK = Path(os.environ["OUT"]), os.environ.get("RANK", "0")
os.environ.setdefault("LOCAL_RANK", RANK)
DEATHS, KINDS = json.loads(os.environ.get("DIE", "[]")), os.environ.get("KINDS", "").split()
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


def append(what, line):
    with (OUT / f"{what}-{RANK}").open("a") as file:
        file.write(json.dumps(line) + "\n")


def is_first(name):
    """Tell whether no process of this rank has been here before."""
    try:
        (OUT / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def die(place, micro=0):
    """Die here, or break as if a peer had died; once."""
    here = [int(RANK), place, trainer.global_step, micro]
    if here in DEATHS and is_first(f"died-{RANK}-{place}-{trainer.global_step}"):
        while "WAIT" in os.environ and not (OUT / "live").exists():
            time.sleep(0.01)  # until it is known that all ranks train
        os.kill(os.getpid(), signal.SIGKILL)
    if here == json.loads(os.environ.get("BREAK", "[]")) and is_first(f"broke-{RANK}"):
        raise RuntimeError("[gloo/gloo/transport/tcp/pair.cc:1] Connection closed by peer")


def digest():
    weights = b"".join(part.detach().numpy().tobytes() for part in model.state_dict().values())
    return hashlib.sha256(weights).hexdigest()


class Samples(Dataset):
    def __len__(self):
        return len(x)

    def __getitem__(self, at):
        noise = torch.randn(8) if "noisy" in KINDS else 0.0
        return x[at] + 0.1 * noise, x[at].sum(0, keepdim=True)


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        parts = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2)
        self.net = nn.Sequential(*parts, nn.Linear(16, 1))
        self.automatic_optimization = "manual" not in KINDS

    def training_step(self, batch, at):
        self.micro = at % MICRO
        die("forward", self.micro)
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        if not self.automatic_optimization:
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()
        return loss

    def validation_step(self, batch, at):
        die("evaluation", at)
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("val_loss", loss, sync_dist=True)

    def on_after_backward(self):
        die("computed", self.micro)

    def on_before_optimizer_step(self, optimizer):
        die("reduced")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Watching(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, at):
        if (at + 1) % MICRO == 0:
            append("steps", [os.getpid(), trainer.global_step, digest()])
            die("end")

    def on_train_epoch_end(self, trainer, module):
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        append("epochs", [trainer.current_epoch, trainer.global_step, metrics])


def before(gradient):
    die("backward")


OUT.mkdir(exist_ok=True)
pl.seed_everything(0, verbose=False)
x = torch.randn(96, 8)
model, MICRO = Net(), int(os.environ.get("MICRO", "1"))
model.net[0].weight.register_hook(before)
saves = ModelCheckpoint(OUT / "files", every_n_train_steps=5, save_top_k=-1, save_last=False)
trainer = pl.Trainer(
    accelerator="cpu",
    devices=WORLD,
    strategy="ddp" if WORLD > 1 else "auto",
    max_steps=int(os.environ.get("STEPS", "14")),
    accumulate_grad_batches=MICRO if "manual" not in KINDS else 1,
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=False,
    default_root_dir=OUT,
    callbacks=[Watching(), saves],
)
if "OWN_SEED" in os.environ:
    torch.manual_seed(int(RANK))
append("starts", os.getpid())
trainer.fit(model, DataLoader(Samples(), 4, shuffle=True), DataLoader(Samples(), 32))
append("ends", [trainer.global_step, digest(), sorted(map(str, (OUT / "files").iterdir()))])
