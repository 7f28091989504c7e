"""A script that trains a tiny random GPT-2 with `Trainer`, and knows nothing of torchloom.

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

FIRST = time.time()  # before the imports, which take longest

import torch  # noqa: E402
from transformers import (  # noqa: E402
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

OUT, RANK = Path(os.environ["OUT"]), os.environ.get("RANK", "0")
DEATHS = json.loads(os.environ.get("DIE", "[]"))
SIZE, LENGTH = 64, 16


def append(what, line):
    with (OUT / f"{what}-{RANK}").open("a") as file:
        file.write(json.dumps(line, default=str) + "\n")


def is_first(name):
    """Tell whether no process of this rank has been here before."""
    try:
        (OUT / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def die(place, step, micro=0):
    """Die here, or break as if a peer had died; once."""
    here = [int(RANK), place, step, micro]
    if here in DEATHS and is_first(f"died-{RANK}-{place}-{step}"):
        while "WAIT" in os.environ and not (OUT / "live").exists():
            time.sleep(0.01)  # until it is known that all ranks train
        append("times", ["killed", step, time.time()])
        os.kill(os.getpid(), signal.SIGKILL)
    if here == json.loads(os.environ.get("BREAK", "[]")) and is_first(f"broke-{RANK}"):
        raise RuntimeError("[gloo/gloo/transport/tcp/pair.cc:1] Connection closed by peer")


def digest():
    hasher = hashlib.sha256()
    for parameter in model.parameters():
        hasher.update(parameter.detach().numpy().tobytes())
    return hasher.hexdigest()


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        x = torch.cumsum(torch.randint(0, 3, (LENGTH,), generator=generator), 0) % 50
        if "NOISY" in os.environ:
            x = torch.where(torch.rand(LENGTH) < 0.1, 0, x)
        if "VARIED" not in os.environ:
            return {"input_ids": x, "labels": x}
        return {
            "input_ids": x,
            "labels": torch.where(torch.arange(LENGTH) < 4 + index % 12, x, -100),
        }


class Model(GPT2LMHeadModel):
    micro = 0

    def forward(self, input_ids=None, labels=None, **kwargs):
        if self.training and torch.is_grad_enabled():
            die("forward", trainer.state.global_step, self.micro)
            Model.micro += 1
        return super().forward(input_ids=input_ids, labels=labels, **kwargs)


class Watching(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        Model.micro = 0
        die("begin", state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        append("times", ["end", state.global_step, time.time()])
        append("steps", [os.getpid(), state.global_step, digest()])
        die("end", state.global_step)

    def on_prediction_step(self, args, state, control, **kwargs):
        die("evaluation", state.global_step)

    def on_evaluate(self, args, state, control, **kwargs):
        die("evaluated", state.global_step)

    def on_train_begin(self, args, state, control, **kwargs):
        append("times", ["ready", state.global_step, time.time()])
        die("begin of newcomer", len((OUT / f"starts-{RANK}").read_text().split()))

    def on_epoch_end(self, args, state, control, **kwargs):
        die("epoch", state.global_step)


class Training(Trainer):
    """A trainer of the program's own, as many have one."""

    def training_step(self, *args, **kwargs):
        step, loss = self.state.global_step, super().training_step(*args, **kwargs)
        die("reduced", step)
        return loss


def collate(samples):
    die("collate", trainer.state.global_step)
    return torch.utils.data.default_collate(samples)


def before(gradient):
    die("backward", trainer.state.global_step)


OUT.mkdir(exist_ok=True)
set_seed(1)
shape = {"vocab_size": 50, "n_positions": LENGTH, "n_embd": 16, "n_layer": 2, "n_head": 2}
drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.1)
model = Model(GPT2Config(**shape, **drop, bos_token_id=0, eos_token_id=0))
model.transformer.wte.weight.register_hook(before)
arguments = TrainingArguments(
    output_dir=str(OUT / "files"),
    per_device_train_batch_size=4,
    max_steps=int(os.environ.get("STEPS", "24")),
    logging_steps=5,
    save_strategy=os.environ.get("SAVES", "no"),
    save_steps=10,
    gradient_accumulation_steps=int(os.environ.get("MICRO", "1")),
    eval_strategy=os.environ.get("EVALUATES", "steps"),
    eval_steps=15,
    learning_rate=5e-3,
    lr_scheduler_type="cosine",
    warmup_steps=3,
    report_to="none",
    use_cpu=True,
    seed=0,
    disable_tqdm=True,
    torch_compile="COMPILED" in os.environ,
    torch_compile_backend="eager" if "COMPILED" in os.environ else None,
)
data = Tokens()
some = torch.utils.data.Subset(data, range(48))
trainer = Training(model, arguments, collate, data, some, callbacks=[Watching()])
if "OWN_SEED" in os.environ:
    torch.manual_seed(int(RANK))
append("starts", os.getpid())
append("times", ["first", 0, FIRST])
result = trainer.train()
append("ends", [trainer.state.global_step, digest(), trainer.state.log_history])
