"""A Lightning program whose own launcher starts its second rank; it knows nothing of torchloom.

Each rank appends a line for every step: step, clock, the lr that moved its weights, their digest.
"""

import hashlib
import json
import os
import time

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

WORLD = 2


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def setup(self, stage):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.out = os.open(f"{os.environ['OUT']}/rank-{self.global_rank}", flags, 0o600)
        self.append({"pid": os.getpid()})

    def append(self, line):
        os.write(self.out, json.dumps(line).encode() + b"\n")

    def training_step(self, batch, at):
        loss = self.net(batch).mean() * 1e-3 * (1 + self.global_rank)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)

    def on_before_optimizer_step(self, optimizer):
        self.before, self.gradient = self.net.bias.item(), self.net.bias.grad.item()

    def on_train_batch_end(self, outputs, batch, at):
        used = round((self.before - self.net.bias.item()) / self.gradient, 4)
        weights = torch.nn.utils.parameters_to_vector(self.net.parameters())
        digest = hashlib.sha256(weights.detach().numpy().tobytes()).hexdigest()[:16]
        self.append([self.trainer.global_step - 1, time.monotonic(), {"lr": used}, digest])
        time.sleep(0.005)


trainer = pl.Trainer(
    accelerator="cpu",
    devices=WORLD,
    strategy=os.environ.get("STRATEGY", "ddp"),
    max_epochs=-1,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    enable_checkpointing=False,
)
trainer.fit(Net(), DataLoader(torch.ones(512, 4), 4))
