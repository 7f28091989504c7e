"""Roll down a parabola with a learning rate; write down every loss that is logged.

It stops half-way until the file `go` is there.
"""

import json
import os
import time
from pathlib import Path

import torchloom as loom

OUT, STEPS = Path(os.environ["OUT"]), 40
given = json.loads(os.environ["LOOM_JOB_SPEC"])["hyperparameters"]
run = loom.init()
place = 1.0
with open(OUT / f"losses-{os.environ['LOOM_JOB']}", "w") as ledger:
    for step in run.steps(STEPS):
        with step:
            place -= given["lr"] * place
            step.log(loss=place * place)
            ledger.write(f"{json.dumps([step.number, place * place])}\n")
            ledger.flush()
        while step.number == STEPS // 2 and not (OUT / "go").exists():
            time.sleep(0.05)
