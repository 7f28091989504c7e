"""What is not converted is refused with its line and what to do about it."""

import pytest

from torchloom.cli.convert.conversion import convert

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
"""
PARTS = """\
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(list(range(9)), 3)
"""
FIRST = 9  # the line of what follows both
STEP = "loss = model(x).mean(); loss.backward(); optimizer.step(); optimizer.zero_grad()"
EPOCH = ["for epoch in range(3):", "    for x in loader:", f"        {STEP}"]
BATCHES = ["for x in loader:", f"    {STEP}"]


def refused(text: str) -> list[tuple[int, str]]:
    """Return what is refused; the text stays as it is then."""
    plan = convert(text, "train")
    assert plan.new == text
    assert plan.is_needed
    return [(one.line, one.text) for one in plan.refused]


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("x = (\n", 1, "this is not Python: '(' was never closed"),
        ("a = 1\nb = \0", 1, "this is not Python: "),
        ("import torch\nprint(1)\n", 1, "no loop that trains was found: nothing calls .backward()"),
        ("import jax\nfor i in range(3):\n    pass\n", 1, "JAX has an engine of its own"),
        (
            "from transformers import Trainer\nclass Mine(Trainer):\n    pass\nMine().train()\n",
            2,
            "the Trainer of transformers needs no conversion: `loom run",
        ),
        ("import lightning as L\nL.Trainer().fit(0)\n", 2, "Lightning needs no conversion"),
        (
            "from accelerate import Accelerator\na = Accelerator()\na.backward(x)\n",
            2,
            "Accelerate needs no conversion",
        ),
        (
            "import deepspeed\nfor x in y:\n    engine.backward(x); engine.step()\n",
            1,
            "DeepSpeed has an engine of its own",
        ),
        (f"import torchloom as loom\nrun = loom.init()\n{HEAD}", 1, "but not run.steps"),
    ],
)
def test_a_program_of_another_kind_is_refused(text: str, line: int, why: str) -> None:
    found = refused(text)

    assert [at for at, _ in found] == [line]
    assert why in found[0][1]


@pytest.mark.parametrize(
    ("lines", "at", "why"),
    [
        (
            ["torch.distributed.fsdp.fully_shard(model)", *BATCHES],
            0,
            "FSDP: convert it by hand; `loom docs convert-an-fsdp-loop` shows how",
        ),
        (["model = nn.DataParallel(model)", *BATCHES], 0, "use DistributedDataParallel"),
        (
            ["o = torch.distributed.optim.ZeroRedundancyOptimizer([])", *BATCHES],
            0,
            "each rank has a part of this optimizer",
        ),
        ([*BATCHES, "torch.multiprocessing.spawn(print)"], 2, "starts its ranks itself"),
        (["model = DDP(model)", "model.register_comm_hook(0, 0)", *BATCHES], 1, "loses its hook"),
        ([*BATCHES, *BATCHES], 2, "a second training loop; the first is in line 9"),
        (["for fold in range(3):", *[f"    {one}" for one in EPOCH]], 0, "a loop around those"),
        (
            ["epoch = 0", "while epoch < 3:", *EPOCH[1:], "    epoch += 1"],
            1,
            "directly in a `for epoch in range(...)`",
        ),
        (["for epoch in [1, 2]:", *EPOCH[1:]], 0, "write `for epoch in range(EPOCHS)`"),
        (["def f():", *[f"    {one}" for one in BATCHES], *EPOCH[:1], "    f()"], 3, "(line 10)"),
        (["def f(x):", f"    {STEP}", "for x in loader:", "    f(x)"], 0, "move its lines into"),
        ([*BATCHES, "else:", "    print()"], 3, "this loop has an `else`"),
        ([f"for x in loader: {STEP}"], 0, "the body of this loop on lines of its own"),
        (["def f():", *[f"    {one}" for one in BATCHES], "    yield 1"], 3, "in a generator"),
        (["async def f():", *[f"    {one}" for one in BATCHES]], 0, "in an `async` function"),
        (
            ["for x in loader:", "    loss.backward(); self.optimizer.step()"],
            1,
            "self.optimizer.step() belongs to an object",
        ),
        (
            ["other = torch.optim.SGD([], lr=1)", *BATCHES, "    other.step()"],
            3,
            "several optimizers (optimizer, other)",
        ),
        (["for x in loader:", "    loss.backward()", "    optimizer.step(print)"], 2, "closure"),
        (["model = DDP(model)", "b = DDP(model)", *BATCHES], 1, "is called a second time"),
        (["model = DDP(model, process_group=0)", *BATCHES], 0, "cannot keep DDP's process_group"),
        (["models = [DDP(model)]", *BATCHES], 0, "is not assigned to a variable"),
        (
            ["if loader:", "    print()", "    model = DDP(model)", *BATCHES],
            1,
            "move it out of the",
        ),
        (["d = iter(loader)", "for n in range(9):", "    x = next(d)", f"    {STEP}"], 2, "next()"),
        (["for x in batches():", f"    {STEP}"], 0, "batches() is not a variable"),
        (
            ["h = 0", "for x in loader:", "    h = h + x", "    x = h", f"    {STEP}"],
            2,
            "`h` is carried from step to step",
        ),
        (
            [*BATCHES, "    bad = bad + 1 if loss > 1 else 0", "    if bad > 3:", "        break"],
            2,
            "`bad` may be read before it is assigned",
        ),
        (
            [
                "bad = 0",
                *BATCHES,
                "    bad = bad + 1 if loss > 1 else 0",
                "    if bad > 3:",
                "        break",
            ],
            3,
            "`bad` is carried from step to step",
        ),
        (
            ["q = []", "for x in loader:", "    q.append(x)", "    x = q[0]", f"    {STEP}"],
            2,
            "steps change `q`",
        ),
        (
            [
                *("at = 0", "def f():", "    global at", "    at += 1", "    return at"),
                *("for n in range(9):", "    x = f()", f"    {STEP}"),
            ],
            3,
            "f() changes `at` from step to step",
        ),
        (
            [
                *("for epoch in range(3):", "    order = torch.randperm(9)"),
                *("    for n in range(9):", "        x = order[n]", f"        {STEP}"),
            ],
            1,
            "each epoch draws this",
        ),
        (
            [
                *(
                    "g = torch.Generator()",
                    "for n in range(9):",
                    "    x = torch.rand(4, generator=g)",
                ),
                *(f"    {STEP}", "    print(torch.rand(1, generator=g))"),
            ],
            4,
            "g draws behind the training",
        ),
        ([*EPOCH, "        if loss < 1:", "            break"], 4, "this `break` ends an epoch"),
        (
            [
                *EPOCH[:2],
                "        if x == 0:",
                "            continue",
                EPOCH[2],
                "    print(epoch)",
            ],
            3,
            "this `continue` would leave out",
        ),
        ([EPOCH[0], "    dist.barrier()", *EPOCH[1:]], 1, "waits for other ranks before an epoch"),
        (
            [
                "for x in loader:",
                "    try:",
                f"        {STEP}",
                "    except RuntimeError:",
                "        continue",
            ],
            3,
            "also catches the loss of another rank",
        ),
        (
            [
                "scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)",
                *(*EPOCH, "    value = model(x)", "    scheduler.step(value)"),
            ],
            5,
            "the schedule is changed behind what waits",
        ),
        (["n = 0", "while n < 9 and x:", f"    {STEP}", "    n += 1"], 1, "is not known from this"),
        (["while True:", f"    {STEP}"], 0, "write `for COUNTER in range(LIMIT)`"),
        (
            ["n = 0", "while True:", "    n += 1", "    if n > 5:", "        break", f"    {STEP}"],
            3,
            "the loop ends in its middle",
        ),
        (
            ["n, m = 0, 3", "n = 0", "while n < m:", "    m = 4", f"    {STEP}", "    n += 1"],
            2,
            "is not known from this",
        ),
        (
            ["n = 0", "while n < m:", "    m = 4", f"    {STEP}", "    n += 1"],
            1,
            "depends on m, which the loop changes",
        ),
        (
            [
                *(
                    "start = 0",
                    "if loader:",
                    "    start = torch.load('a')['n']",
                    "else:",
                    "    print()",
                ),
                *("for epoch in range(start, 9):", *EPOCH[1:]),
            ],
            2,
            "`start` continues from a file of the program",
        ),
        (
            ["if loader:", "    s = torch.load('a')", "    start = s['n']", *EPOCH, "print(start)"],
            0,
            "start is set in this block alone",
        ),
        (
            [EPOCH[0], "    loader.sampler.set_epoch(epoch); print()", *EPOCH[1:]],
            1,
            "two statements",
        ),
    ],
)
def test_a_loop_that_is_not_understood_is_refused(lines: list[str], at: int, why: str) -> None:
    found = refused(HEAD + PARTS + "\n".join(lines) + "\n")

    assert [line for line, _ in found] == [FIRST + at], found
    assert why in found[0][1]


@pytest.mark.parametrize(
    ("parts", "line", "why"),
    [
        ("from p import model, optimizer, loader\n", 7, "which model is trained is not known"),
        (
            "a, model = nn.Linear(1, 1), nn.Linear(1, 1)\nloader = []\n"
            "optimizer = torch.optim.SGD([*a.parameters(), *model.parameters()])\n",
            9,
            "(found: a, model)",
        ),
    ],
)
def test_a_model_that_is_not_known_is_refused(parts: str, line: int, why: str) -> None:
    found = refused(HEAD + parts + "\n".join(BATCHES))

    assert [at for at, _ in found] == [line]
    assert why in found[0][1]


def test_an_end_of_an_epoch_that_cannot_be_known_is_refused() -> None:
    data = "class Endless(torch.utils.data.IterableDataset): pass\nloader = DataLoader(Endless())\n"
    parts = PARTS.replace("loader = DataLoader(list(range(9)), 3)\n", data)

    found = refused(HEAD + parts + "\n".join([*EPOCH, "    print(epoch)"]))

    assert [line for line, _ in found] == [11]
    assert "loader has no length" in found[0][1]


def test_everything_that_is_known_by_its_name_is_refused_at_once() -> None:
    lines = ["model = nn.DataParallel(model)", *BATCHES, "torch.multiprocessing.spawn(print)"]

    found = refused(HEAD + PARTS + "\n".join(lines))

    assert [line for line, _ in found] == [9, 12]
