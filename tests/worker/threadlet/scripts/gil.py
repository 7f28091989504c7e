"""Steps, then some seconds in which no other thread of Python gets a turn, then steps again."""

import json
import os
import re
import time
from pathlib import Path

import torch

optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def hold(seconds):
    """Hold the GIL in one call of C: the time of a bad pattern doubles with each letter."""
    letters = 18
    while True:
        began = time.monotonic()
        re.match(r"(a+)+$", "a" * letters + "b")
        took = time.monotonic() - began
        if took > seconds / 2:
            return took
        letters += 1 if took > seconds / 8 else 2


for _ in range(20):
    optimizer.step()
    time.sleep(0.002)
Path(os.environ["OUT"]).write_text("holding")
took = hold(3.0)
Path(os.environ["OUT"]).write_text("done")
for _ in range(2000):
    optimizer.step()
    time.sleep(0.002)
print(json.dumps({"took": took}))
