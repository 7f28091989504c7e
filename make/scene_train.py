"""The training in the pictures: its loss falls, and jumps when its lr is set too high.

    LR=0.05 STEPS=1000 WIDTH=64 QUICK=640 loom run -n 2 make/scene_train.py

Up to step QUICK it hurries; then a step takes most of a second, so that it stands nearly still
while pictures of it are taken. FAIL_AT is a step at which it fails.
"""

import logging
import os
import resource
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import torchloom as loom

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LR, WIDTH = float(os.environ.get("LR", 0.05)), int(os.environ.get("WIDTH", 64))
STEPS, QUICK = int(os.environ.get("STEPS", 1000)), int(os.environ.get("QUICK", 640))
FAIL_AT = int(os.environ.get("FAIL_AT", -1))
INPUTS, CLASSES, BATCH = 32, 10, 32
SWIFT, SLOW = 0.03, 0.8  # seconds of a step


def samples(count: int, seed: int) -> TensorDataset:
    """Return points, each with the class that a network drawn once says it has."""
    torch.manual_seed(1)
    teacher = nn.Sequential(nn.Linear(INPUTS, 48), nn.Tanh(), nn.Linear(48, CLASSES))
    points = torch.randn(count, INPUTS, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return TensorDataset(points, teacher(points).argmax(1))


def judged(model: nn.Module, known: TensorDataset) -> dict[str, float]:
    """Return how the model does on what it has not seen."""
    with torch.no_grad():
        said, right = model(known.tensors[0]), known.tensors[1]
        loss = nn.functional.cross_entropy(said, right)
    return {"eval/loss": loss.item(), "eval/accuracy": _share(said, right)}


def _share(said: torch.Tensor, right: torch.Tensor) -> float:
    return float((said.argmax(1) == right).float().mean())


def _figures(took: float) -> dict[str, float]:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    speed = BATCH * WORLD / took
    return {"perf/step_ms": took * 1000, "perf/samples_per_s": speed, "perf/memory_mb": memory}


torch.set_num_threads(1)
logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
dist.init_process_group("gloo")
unseen, train = samples(512, seed=2), samples(8192, seed=3)
torch.manual_seed(4)
config = {"total_steps": STEPS, "width": WIDTH, "label_smoothing": 0.0, "grad_clip": 2.0}
run = loom.init(project="digits", config=config)
model = run.wrap(nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.GELU(), nn.Linear(WIDTH, CLASSES)))
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=1e-4)
run.track(optimizer=optimizer)
lowest = float("inf")
logging.info(
    "rank %d of %d is ready, %d parameters", RANK, WORLD, sum(p.numel() for p in model.parameters())
)
for step in run.steps(run.loader(train, batch_size=BATCH), epochs=1000):
    with step:
        began = time.perf_counter()
        said, right = model(step.batch[0]), step.batch[1]
        smoothing = float(run.config["label_smoothing"])
        loss = nn.functional.cross_entropy(said, right, label_smoothing=smoothing)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), float(run.config["grad_clip"]))
        optimizer.step()
        optimizer.zero_grad()
        values = {"loss": loss.item(), "accuracy": _share(said, right), "grad_norm": norm.item()}
        values |= _figures(time.perf_counter() - began)
        if step.number % 10 == 0:
            values |= judged(model, unseen)
        step.log(**values)
        if step.number % 20 == 0:
            logging.info(
                "step %d loss %.4f accuracy %.3f", step.number, values["loss"], values["accuracy"]
            )
        if values["loss"] > 2 * lowest + 1:
            logging.warning(
                "step %d: the loss is %.3f, it was %.3f", step.number, values["loss"], lowest
            )
        lowest = min(lowest, values["loss"])
        if step.number == FAIL_AT:
            raise ValueError(
                f"label {CLASSES} in a batch of step {step.number}: there are {CLASSES} classes"
            )
    if step.number >= STEPS - 1:
        break
    time.sleep(SWIFT if step.number < QUICK else SLOW)
dist.destroy_process_group()
