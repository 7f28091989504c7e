"""Programs whose steps cannot be counted alike on all ranks: HOW says why."""

import os
import threading
import time

import torch

how = os.environ["HOW"]
many = [torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1) for _ in range(9)]


def step_forever():
    while True:
        many[1].step()
        time.sleep(0.002)


if how == "threads":
    threading.Thread(target=step_forever, daemon=True).start()
for _ in range(3000):
    for optimizer in many if how == "many" else many[:1]:
        optimizer.step()
    time.sleep(0.002)
