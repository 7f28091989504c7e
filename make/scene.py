"""What the pictures of the dashboard show, played on a real plane: people at work on a training."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

from losses import pid_of
from stage import ROOT, NotShown, Stage, until

SCRIPT = "scene_train.py"
TOO_HIGH, UNDONE, KILLED, SHOWN = 220, 22, 420, 640  # steps: of a change, until its undo, ...
WORKERS = 2
DEVICES = "cpu:4"
ROLE = "operator" if os.getuid() else "admin"  # on a plane of root, only an admin runs jobs as root


class Person:
    """A client with a token, over HTTP."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._url = json.loads(stage.ask("up", "--status", "--json"))["url"]
        words = ("tokens", "add", name, "--role", ROLE, "--json")
        self._token = json.loads(stage.ask(*words))["token"]
        if not os.getuid():
            stage.ask("tokens", "user", name, "--run-as", "root")

    def ask(self, path: str, body: object = None) -> Any:
        """Return what the plane answers."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self._url + path, data)
        asked.add_header("Authorization", f"Bearer {self._token}")
        asked.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(asked, timeout=90) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise NotShown(f"{path}: {error.read().decode()}") from error

    def submit(self, name: str, tags: list[str], workers: int = WORKERS, **env: object) -> str:
        """Submit the training; return its job."""
        spec = {
            "name": name,
            "script": SCRIPT,
            "project": "digits",
            "tags": tags,
            "env": {variable: str(value) for variable, value in env.items()},
            "resources": {"workers": workers},
            "recovery": {"policy": "live"},
            "checkpointing": {"enabled": True, "every_n_steps": 100, "keep_last": 4},
        }
        cwd = urllib.request.quote(str(ROOT / "make"))
        return str(self.ask(f"/api/jobs?cwd={cwd}", spec)["id"])

    def job(self, job: str) -> Any:
        return self.ask(f"/api/jobs/{job}")

    def command(self, job: str, verb: str, reason: str, **facts: object) -> None:
        """Have a job do something, which all its ranks must have done."""
        reply = self.ask(f"/api/jobs/{job}/commands", {"verb": verb, "reason": reason, **facts})
        if reply["state"] != "applied":
            raise NotShown(f"{verb} is {reply['state']}: {reply}")


class Scene:
    """The plane, its people and their jobs, as they are when pictures are taken."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        _build()
        stage.loom("up")
        self.url: str = json.loads(stage.ask("up", "--status", "--json"))["url"]
        self.job = self.other = ""

    def link(self) -> str:
        """Return a way in."""
        return self._stage.ask("tokens", "link", "olga", "--role", ROLE).split()[-1]

    def play(self) -> None:
        """Play it all; come back when there is something to see everywhere."""
        olga = Person(self._stage, "olga")
        amir = Person(self._stage, "amir")
        self.other = olga.submit("digits-wide", ["baseline"], LR=0.01, WIDTH=128, STEPS=400)
        failed = amir.submit("digits-relabelled", ["data"], FAIL_AT=60, WIDTH=64)
        self.job = olga.submit("digits", ["night"], LR=0.02, STEPS=1200, QUICK=SHOWN)
        self._misjudge(olga)
        self._lose()
        until(lambda: _step(olga, self.job) >= SHOWN)
        until(lambda: olga.job(self.other)["state"] == "COMPLETED")
        until(lambda: amir.job(failed)["state"] == "FAILED")
        amir.submit("digits-deep", ["sweep"], workers=4, LR=0.01, WIDTH=256)
        until(lambda: olga.job(self.job)["state"] == "RUNNING")

    def _misjudge(self, olga: Person) -> None:
        """Make the learning rate too high, and take that back."""
        until(lambda: _step(olga, self.job) >= TOO_HIGH)
        olga.command(self.job, "set", "it learns slowly: try more", values={"lr": 0.5})
        changed = _step(olga, self.job)
        until(lambda: _step(olga, self.job) >= changed + UNDONE)
        olga.command(self.job, "undo", "the loss has jumped")
        until(lambda: _step(olga, self.job) >= KILLED)

    def _lose(self) -> None:
        """Kill a rank with -9."""
        os.kill(pid_of(self._stage.home / "runs" / self.job, 1), signal.SIGKILL)


def _step(person: Person, job: str) -> int:
    return int(person.job(job)["step"] or 0)


def _build() -> None:
    words = [sys.executable, str(ROOT / "make" / "dashboard.py")]
    if subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode:
        raise NotShown("there is no dashboard to take pictures of")
