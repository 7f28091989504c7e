"""Written by the program itself, before anything else: who started it, and is torch in memory?"""

import json
import os

if "WITNESS" in os.environ:
    with open("/proc/self/maps") as maps:
        warm = "libtorch_cpu" in maps.read()
    with open(os.environ.pop("WITNESS"), "w") as file:
        json.dump({"pid": os.getpid(), "parent": os.getppid(), "warm": warm}, file)
