"""A program that saves by itself, and writes down when."""

import json
import os

import torchloom as loom
from torchloom.worker.threadlet.threadlet import current

out = open(f"{os.environ['OUT']}/rank-{os.environ['RANK']}", "w")  # noqa: SIM115
run = loom.init()
run.on("checkpoint", lambda step: out.write(json.dumps({"saved": step}) + "\n"))
for step in run.steps(10_000_000):
    with step:
        pass
out.close()
current().close()  # a fork of the tests leaves without
