"""A loop with Accelerate that restores itself, and knows nothing of torchloom.

It appends what it sees to files of its own: each step with the lr as the optimizer has it, the lr
as the weights show it, and a digest of the weights; what its tracker gets; and where it ends. It
waits before the step that the file `hold` names, as long as it does.
"""

import hashlib
import json
import os
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

OUT, RANK = Path(os.environ.get("FILES") or os.environ["OUT"]), os.environ.get("RANK", "0")
STEPS, EVERY, PARTS = int(os.environ.get("STEPS", "40")), int(os.environ.get("EVERY", "10")), 2
os.environ.setdefault("LOCAL_RANK", RANK)


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
    return progress.step >= at


class Tracker(GeneralTracker):
    """Writes what trackers get."""

    name, requires_logging_directory, tracker = "file", False, None

    def store_init_configuration(self, values):
        append("config", values)

    def log(self, values, step=None, **more):
        append("logged", [step, values])


class Progress:
    """The program's own counter, which it saves and restores with the rest."""

    step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


def before(optimizer, args, kwargs):
    while held():
        time.sleep(0.01)
    seen.update(was=weight.detach().clone(), grad=weight.grad.clone())


def after(optimizer, args, kwargs):
    moved, lr = (seen["was"] - weight.detach()) / seen["grad"], optimizer.param_groups[0]["lr"]
    append("steps", [os.getpid(), progress.step, lr, float(moved), digest()])


set_seed(1)
torch.set_default_dtype(torch.float64)
accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=PARTS,
    log_with=[Tracker()],
    project_config=ProjectConfiguration(str(OUT), automatic_checkpoint_naming=True),
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
)
config = {"width": 16, "lr": 0.05, "hub_token": "not to be seen"}
accelerator.init_trackers("tiny", config)
x = torch.randn(96, 8)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
weight, seen, progress = model[2].bias, {}, Progress()
optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
optimizer.register_step_pre_hook(before)
optimizer.register_step_post_hook(after)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 4, shuffle=True)
net, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
accelerator.register_for_checkpointing(progress)
append("starts", os.getpid())
if "FORGETS" not in os.environ and (OUT / "checkpoints").is_dir():
    accelerator.load_state()
    accelerator.project_configuration.iteration = 1000 + progress.step
while progress.step < STEPS:
    epoch, done = divmod(progress.step, len(data) // PARTS)
    data.set_epoch(epoch)
    for inputs, wanted in accelerator.skip_first_batches(data, done * PARTS):
        with accelerator.accumulate(net):
            loss = torch.nn.functional.mse_loss(net(inputs), wanted)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            continue
        progress.step += 1
        if progress.step % 5 == 0:
            accelerator.log({"train_loss": loss.item(), "note": "a text"}, step=progress.step)
        if progress.step % EVERY == 0:
            accelerator.save_state()
        if progress.step >= STEPS:
            break
append("ends", [progress.step, digest()])
accelerator.end_training()
