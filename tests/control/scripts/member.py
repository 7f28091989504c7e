"""A rank of a replica group that does nothing but steps; it writes each into its own file."""

import json
import os
import time

from torchloom.worker.run import run as loom

out = os.open(os.environ["OUT"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
run = loom.init(config={"temperature": 0.7})
run.event("job", policy={"recovery": os.environ["RECOVERY"]})
for step in run.steps(1_000_000):
    with step:
        time.sleep(0.002)
        os.write(out, json.dumps([step.number, time.monotonic()]).encode() + b"\n")
