"""Know what training imports, so that a zygote has it all: recorded from a real step, and learned.

A warm rank that has imported a framework leaves the list of what it has imported when it ends. The
next zygote imports that, too, if a fork that tries it shows that it can be forked afterwards.
"""

import contextlib
import importlib
import json
import os
import site
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torchloom
from torchloom.worker import environment

_VALUES = 4
_AT_EVERY_START = ("sitecustomize", "usercustomize")
_OURS = (  # a rank that takes the place of another has all others wait for its imports
    "torchloom.worker.threadlet.threadlet",
    "torchloom.worker.run.run",
    "torchloom.worker.run.resumable",
    "torchloom.worker.recovery.recovery",
    "torchloom.worker.saving",
    "torch.testing._internal.distributed.fake_pg",
)


# Learned when a program imports one of them; others are imported for these alone.
FRAMEWORKS = (
    *("accelerate", "datasets", "lightning", "peft", "pytorch_lightning", "torchvision"),
    *("transformers", "trl"),
)
_NEVER = ("jax", "jaxlib", "mlflow", "mpi4py", "tensorflow", "wandb")  # threads, files, connections
_FIT, _UNFIT = 0, 1


class Lesson:
    """What programs have imported beside what their zygote had, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = self._changed_at()
        self._held: frozenset[str] = frozenset()

    @property
    def is_news(self) -> bool:
        """Tell whether a program has imported more since this zygote began."""
        return self._changed_at() > self._read

    def preload(self) -> None:
        """Import what was learned, if this process can be forked with it."""
        names = _read(self._path) or []
        if names and _can_be_forked(names):
            _import(names)
        self._held = frozenset(sys.modules)

    def learn(self) -> None:
        """Note what this program, a fork of the zygote, has imported, if it uses a framework."""
        new = sys.modules.keys() - self._held
        if new.isdisjoint(FRAMEWORKS):
            return
        known = _read(self._path) or []
        found = [name for name in _installed() if name in new and not _is_excluded(name)]
        if more := [name for name in found if name not in set(known)]:
            _write(self._path, known + more)

    def _changed_at(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0


_lesson: Lesson | None = None


def study(path: Path) -> Lesson:
    """Import what programs have imported before, and learn more from the forks of this process."""
    global _lesson
    _lesson = Lesson(path)
    _lesson.preload()
    return _lesson


def learn() -> None:
    """Leave what this program has imported for the next zygote; nothing outside of a warm rank."""
    if _lesson is not None and environment.text("RANK", "0") == "0":
        _lesson.learn()


def threads() -> int:
    """Return the number of threads of this process."""
    return len(os.listdir("/proc/self/task"))


def device() -> str:
    """Return a device that this process has opened, which its forks could not use; else nothing."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if (path := os.readlink(f"/proc/self/fd/{name}")).startswith("/dev/nvidia"):
                return path
    return ""


def _is_excluded(name: str) -> bool:
    return name.startswith("__") or name.partition(".")[0] in _NEVER


def _can_be_forked(names: list[str]) -> bool:
    """Tell whether a process that has imported this has one thread and no device, by a trial."""
    pid = os.fork()
    if pid == 0:
        code = _UNFIT
        try:
            _import(names)
            found = dict(sys.modules)
            if threads() == 1 and not device() and not unfit(found, installed_roots()):
                code = _FIT
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == _FIT


def _import(names: list[str]) -> None:
    for name in names:
        with contextlib.suppress(Exception):  # what cannot be imported alone, a program will import
            importlib.import_module(name)


def preload(cache: Path) -> None:
    """Import torch and all that the first training step of a program would import."""
    import torch  # noqa: F401

    names = _read(cache)
    if names is None:
        names = _record()
        _write(cache, names)
    _import(names)
    for name in _OURS:
        with contextlib.suppress(ImportError):  # an interpreter without msgspec has no threadlet
            importlib.import_module(name)


def installed_roots() -> tuple[str, ...]:
    """Return the folders a zygote may import from: the interpreter's own, and torchloom's."""
    library = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    user = site.getusersitepackages()
    packages = [*site.getsitepackages(), *([user] if user in sys.path else [])]
    own = os.path.dirname(os.path.abspath(torchloom.__file__))
    given = [os.path.abspath(path) for path in (*library, *packages, own)]
    return tuple(path + os.sep for path in dict.fromkeys([*given, *map(os.path.realpath, given)]))


def origin(module: ModuleType) -> str:
    """Return the file a module came from; nothing for what the interpreter brings itself."""
    spec = getattr(module, "__spec__", None)
    path = getattr(spec, "origin", None) or getattr(module, "__file__", None) or ""
    return path if os.path.isabs(path) else ""


def foreign(modules: Mapping[str, ModuleType], roots: tuple[str, ...]) -> dict[str, str]:
    """Return the files that were imported and are not installed, by module: on PYTHONPATH, say."""
    files = {name: origin(module) for name, module in modules.items()}
    return {name: path for name, path in files.items() if path and not _is_below(path, roots)}


def unfit(modules: Mapping[str, ModuleType], roots: tuple[str, ...]) -> str:
    """Return why an interpreter with these modules must not be forked, if so.

    A module from elsewhere is fine where its file can be looked at before each job.
    """
    for name, path in foreign(modules, roots).items():
        if name in _AT_EVERY_START:
            return f"{path} is run at every start of the interpreter, and not by a fork"
        if not os.path.isfile(path):
            return f"{path} is inside an archive, where a change is not noticed"
    return ""


def _is_below(path: str, roots: tuple[str, ...]) -> bool:
    return path.startswith(roots) or os.path.realpath(path).startswith(roots)


def _read(cache: Path) -> list[str] | None:
    try:
        names = json.loads(cache.read_text())
    except (OSError, ValueError):
        return None
    return names if isinstance(names, list) else None


def _write(cache: Path, names: list[str]) -> None:
    with contextlib.suppress(OSError):  # then the next one records again
        cache.parent.mkdir(parents=True, exist_ok=True)
        partial = cache.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(names))
        partial.replace(cache)


def _record() -> list[str]:
    """Take a training step in a fork, which may start threads, and return what it imported."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _train()
        finally:  # half a step still shows half the modules
            with open(write_end, "w") as pipe:
                json.dump(_installed(), pipe)
            os._exit(0)
    os.close(write_end)
    with open(read_end) as report:
        text = report.read()
    os.waitpid(pid, 0)
    names: list[str] = json.loads(text) if text else []
    return names


def _installed() -> list[str]:
    roots = installed_roots()
    files = {name: origin(module) for name, module in list(sys.modules.items())}
    return [name for name, path in files.items() if path and _is_below(path, roots)]


def _train() -> None:
    import torch
    import torch.distributed
    from torch import nn, optim
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    distributed: Any = torch.distributed
    with tempfile.NamedTemporaryFile() as file:
        store = distributed.FileStore(file.name, 1)
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(_VALUES, _VALUES), nn.ReLU()))
        data = TensorDataset(torch.zeros(_VALUES, _VALUES))
        loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data))
        for kind in (optim.SGD, optim.Adam, optim.AdamW):
            optimizer = kind(model.parameters(), lr=0.1)
            schedule = optim.lr_scheduler.StepLR(optimizer, step_size=1)
            for (batch,) in loader:
                loss: Any = nn.functional.mse_loss(model(batch), batch)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
        torch.save(model.state_dict(), os.devnull)
        del model
        distributed.destroy_process_group()
