"""Log so many steps that a chart cannot show each of them at once."""

import math
import time

import torchloom as loom

run = loom.init()
for step in run.steps(4000):
    with step:
        step.log(loss=math.sin(step.number / 5) + 2)
    time.sleep(0.0005)
