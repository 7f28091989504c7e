"""A program that takes what its job was submitted with."""

import json
import time

import torchloom.worker.run.run as loom
from torchloom.worker.threadlet.threadlet import current

run = loom.init(config={"temperature": 0.7, "layers": 1, "own": "x"})
print(json.dumps({"config": dict(run.config), "layers": run.config.layers}))
for step in run.steps(20):
    with step:
        time.sleep(0.02)
current().close()  # a fork of the tests leaves without
