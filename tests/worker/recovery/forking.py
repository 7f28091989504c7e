"""A process with torch that forks ranks one by one and says how each ended; run as a program.

A line `{"env": ..., "out": ..., "script": ...}` on stdin is a rank to be started; a line on stdout
is `[pid]` for one that was, or `[pid, code]` for one that has ended.
"""

import importlib
import json
import os
import select
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.harness import forked_ranks as ranks

MODULES = ("torch.distributed", "torch._dynamo", "torch.nn.parallel", "torch.utils.data", "numpy")
OURS = ("threadlet.attach", "run.run", "run.resumable", "recovery.recovery", "saving")
ATTACH = "from torchloom.worker.threadlet import attach\nattach.attach()\n"
CLOSE = "\nfrom torchloom.worker.threadlet.threadlet import current\ncurrent().close()\n"


def main() -> None:
    for name in MODULES:
        importlib.import_module(name)
    for name in OURS:
        importlib.import_module(f"torchloom.worker.{name}")
    importlib.import_module("torch.testing._internal.distributed.fake_pg")
    print("[]", flush=True)
    children: dict[int, int] = {}  # by the descriptor that ends with them
    while True:
        ready, _, _ = select.select([0, *children], [], [])
        for one in ready:
            if one == 0:
                line = sys.stdin.buffer.raw.readline()  # type: ignore[attr-defined]
                if not line:
                    return
                pid = start(json.loads(line))
                children[os.pidfd_open(pid)] = pid
            else:
                pid = children.pop(one)
                os.close(one)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                print(json.dumps([pid, code]), flush=True)


def start(told: dict[str, str]) -> int:
    script = ATTACH + Path(told["script"]).read_text() + CLOSE
    env: dict[str, str] = told["env"]  # type: ignore[assignment]
    pid = ranks._fork(env, Path(told["out"]), script, True)
    print(json.dumps([pid]), flush=True)
    return pid


if __name__ == "__main__":
    main()
