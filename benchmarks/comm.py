"""Gradients over a slow link: time to a loss, and bytes, beside DDP and the hooks of torch.

Two ranks in two network namespaces (comm_trained.py), with `tc` between them. What is timed ends
when the held-out loss is low enough, so that fewer bytes count only if the training gets as far.
"""

import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable

from benchmarks import recovery_link
from benchmarks.figure import CannotMeasure, Figure, Lab, Subject, asked, once

SAMPLES = 10
RATES = ("1gbit", "100mbit")
PEERS = {"ddp": "DDP", "fp16": "fp16_compress_hook", "powersgd": "powerSGD_hook"}
OURS = ("topk", "int8", "local")


def figures(lab: Lab) -> list[Figure]:
    """Return the figures of compression."""
    ranks = {rate: once(lambda rate=rate: started(lab, rate)) for rate in RATES}

    def way(rate: str, kind: str, name: str) -> Subject:
        seeds = itertools.count(1)
        peer = PEERS.get(name)
        command = peer or f"run.wrap(model, compression={name!r})"
        take = sampler(ranks[rate], rate, kind, name, seeds)
        return Subject(f"{command}, {rate}", take, "torch" if peer else "loom", version(name))

    fast = {name: way("1gbit", "time", name) for name in (*PEERS, *OURS)}
    slow = {name: way("100mbit", "time", name) for name in ("ddp", "powersgd", "topk", "local")}
    goal = "ms to a held-out loss, two hosts"
    after = "after the same steps"
    sent, loss = (
        [way("1gbit", kind, name) for name in ("diloco", "ddp")] for kind in ("bytes", "loss")
    )
    return [
        Figure("gbit-local-ddp", goal, fast["local"], fast["ddp"]),
        Figure("gbit-local-fp16", goal, fast["local"], fast["fp16"]),
        Figure("gbit-local-powersgd", goal, fast["local"], fast["powersgd"]),
        Figure("gbit-topk-ddp", goal, fast["topk"], fast["ddp"]),
        Figure("gbit-int8-ddp", goal, fast["int8"], fast["ddp"]),
        Figure("100mbit-local-ddp", goal, slow["local"], slow["ddp"]),
        Figure("100mbit-local-powersgd", goal, slow["local"], slow["powersgd"]),
        Figure("100mbit-topk-ddp", goal, slow["topk"], slow["ddp"]),
        Figure("diloco-bytes", f"bytes sent by a host, {after}", *sent),
        Figure("diloco-loss", f"held-out loss, {after}", *loss),
    ]


def version(name: str) -> str:
    """Return the version of what a peer is part of."""
    import torch

    return str(torch.__version__) if name in PEERS else ""


def sampler(
    ranks: Callable[[], "subprocess.Popen[str]"],
    rate: str,
    kind: str,
    name: str,
    seeds: "itertools.count[int]",
) -> Callable[[], float]:
    """Return what trains once, each time with another seed."""

    def sample() -> float:
        excuse = f"the ranks over {rate} ended: see above"
        value = asked(ranks(), f"{kind} {name} {next(seeds)}", excuse)
        if value != value:
            raise CannotMeasure(f"{name} did not reach the loss over {rate}")
        return value

    return sample


def started(lab: Lab, rate: str) -> "subprocess.Popen[str]":
    """Start two ranks with a link of this rate."""
    why = recovery_link.can_be()
    if why or not shutil.which("tc", path="/sbin:/usr/sbin:/bin:/usr/bin"):
        raise CannotMeasure(why or "a slow link takes `tc` (package iproute2)")
    words = [sys.executable, "-m", "benchmarks.comm_trained", rate]
    pipe = subprocess.PIPE
    ranks = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=dict(lab.env))
    lab.at_end.callback(ended, ranks)
    return ranks


def ended(ranks: "subprocess.Popen[str]") -> None:
    """Let the ranks end: there is nothing more to ask."""
    assert ranks.stdin is not None
    ranks.stdin.close()
    try:
        ranks.wait(30)
    except subprocess.TimeoutExpired:
        ranks.kill()
