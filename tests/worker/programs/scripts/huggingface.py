"""A script that trains a tiny random GPT-2 with `Trainer`, and knows nothing of torchloom.

It appends what it sees to files of its own: each step with the lr as the optimizer has it, the lr
as the weights show it, and a digest of the weights; what `Trainer` has logged; where it ends. It
waits before the step that the file `hold` names, as long as it does.
"""

import hashlib
import json
import os
import time
from pathlib import Path

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

OUT, RANK = Path(os.environ["OUT"]), os.environ.get("RANK", "0")


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        x = torch.cumsum(torch.randint(0, 3, (16,), generator=generator), 0) % 50
        if "NOISY" in os.environ:
            x = torch.where(torch.rand(16) < 0.1, 0, x)
        return {"input_ids": x, "labels": x}


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return (data[index] for index in range(len(data)))


def append(what, line):
    with (OUT / f"{what}-{RANK}").open("a") as file:
        file.write(json.dumps(line, default=str) + "\n")


def digest():
    hasher = hashlib.sha256()
    for parameter in model.parameters():
        hasher.update(parameter.detach().numpy().tobytes())
    return hasher.hexdigest()


def held():
    try:
        at = int((OUT / "hold").read_text() or 1 << 60)
    except FileNotFoundError:
        return False
    return trainer.state.global_step >= at


def before(optimizer, args, kwargs):
    while held():
        time.sleep(0.01)
    weight = max(model.parameters(), key=lambda one: float(one.grad.abs().max()))
    at = int(weight.grad.abs().argmax())
    seen.update(weight=weight, at=at, was=float(weight.detach().flatten()[at]))
    seen.update(lr=optimizer.param_groups[0]["lr"], grad=float(weight.grad.flatten()[at]))


def after(optimizer, args, kwargs):
    moved = seen["was"] - float(seen["weight"].detach().flatten()[seen["at"]])
    append(
        "steps",
        [os.getpid(), trainer.state.global_step, seen["lr"], moved / seen["grad"], digest()],
    )


class Odd:
    """Something that a program may log, and that no observer expects."""

    @property
    def shape(self):
        raise RuntimeError("it has no shape")


class Logging(TrainerCallback):
    """A callback of the program that logs at its own will."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            trainer.log({"odd": Odd()})


OUT.mkdir(exist_ok=True)
set_seed(1)
seen = {}
shape = {"vocab_size": 50, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0, resid_pdrop=0.1))
arguments = TrainingArguments(
    output_dir=os.environ.get("FILES", str(OUT / "files")),
    per_device_train_batch_size=4,
    max_steps=int(os.environ.get("STEPS", "40")),
    logging_steps=5,
    save_strategy=os.environ.get("SAVES", "steps"),
    save_steps=int(os.environ.get("EVERY", "10")),
    save_total_limit=int(os.environ.get("KEEPS", "0")) or None,
    gradient_accumulation_steps=2,
    dataloader_num_workers=int(os.environ.get("WORKERS", "0")),
    eval_strategy="steps",
    eval_steps=15,
    learning_rate=1e-1,
    lr_scheduler_type="cosine",
    optim="sgd",
    report_to="none",
    use_cpu=True,
    seed=0,
    disable_tqdm=True,
    hub_token="hf_not_to_be_seen",
)
data = Tokens()
some = torch.utils.data.Subset(data, range(8))
used = Stream() if "STREAM" in os.environ else data
trainer = Trainer(model, arguments, train_dataset=used, eval_dataset=some)
if "ODD" in os.environ:
    trainer.add_callback(Logging())
trainer.create_optimizer()
trainer.optimizer.register_step_pre_hook(before)
trainer.optimizer.register_step_post_hook(after)
append("starts", os.getpid())
trainer.train(resume_from_checkpoint=os.environ.get("OWN"))
append("ends", [trainer.state.global_step, digest(), trainer.state.log_history])
