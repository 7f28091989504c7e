"""A process that has imported torch and forks ranks, so that a test need not wait for imports.

A request is a line on stdin, `{"script", "outs", "envs"}`; the answer a line with the exit codes.
A fork has the environment it is given and no other, and ends as any program does.
"""

import gc
import json
import os
import sys
import time
import traceback

LIMIT = 180.0  # seconds, for loaded machines; ranks that take longer are stuck, and killed


def serve() -> None:
    """Answer requests until stdin ends."""
    import torch
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.tensor  # noqa: F401

    import torchloom.worker.dist  # noqa: F401

    gc.freeze()  # a collection in a fork need not copy what all forks share
    for line in sys.stdin:
        request = json.loads(line)
        pids = []
        for out, env in zip(request["outs"], request["envs"], strict=True):
            pid = os.fork()
            if not pid:
                be_rank(request["script"], out, env)
            pids.append(pid)
        print(json.dumps([reap(pid) for pid in pids]), flush=True)


def be_rank(script: str, out: str, env: dict[str, str]) -> None:
    import torch

    with open(out, "w") as target, open(os.devnull) as nothing:
        for fd, file in enumerate((nothing, target, target)):
            os.dup2(file.fileno(), fd)
    os.environ.clear()
    os.environ.update(env)
    torch.set_num_threads(1)
    try:
        exec(compile(script, "<rank>", "exec"), sys.modules["__main__"].__dict__)  # noqa: S102
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None
    raise SystemExit(0)


def reap(pid: int) -> int:
    deadline = time.monotonic() + LIMIT
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, 9)
        time.sleep(0.002)


if __name__ == "__main__":
    serve()
