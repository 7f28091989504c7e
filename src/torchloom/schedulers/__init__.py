"""Where an app can run: one module a backend, imported when it is needed."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchloom.schedulers.api import Scheduler

SchedulerFactory = Callable[..., "Scheduler[Any]"]

BUILT_IN: Mapping[str, str] = {
    "local": "torchloom.schedulers.local_scheduler",
    "local_cwd": "torchloom.schedulers.local_scheduler",
    "lsf": "torchloom.schedulers.lsf_scheduler",
    "pbs": "torchloom.schedulers.pbs_scheduler",
    "slurm": "torchloom.schedulers.slurm_scheduler",
}
DEFAULT = "local"
LOCAL = ("local", "local_cwd")  # one engine under two names
GROUP = "torchloom.schedulers"  # entry points of this group, and TorchX's plugins, add to them


def get_default_scheduler_name() -> str:
    """Return the scheduler that is used by default."""
    return DEFAULT


def engines(backends: Iterable[str]) -> list[str]:
    """Return each engine once, under its first name."""
    return [backend for backend in backends if backend not in LOCAL[1:]]


def get_scheduler_factories() -> dict[str, SchedulerFactory]:
    """Return a factory of every scheduler, by name; plugins cannot replace built-in ones."""
    return {**_plugins(), **{name: _on_use(name, module) for name, module in BUILT_IN.items()}}


def get_scheduler_factory(name: str) -> SchedulerFactory | None:
    """Return the factory of a scheduler, or None; plugins are searched if it is not built in."""
    if name in BUILT_IN:
        return _on_use(name, BUILT_IN[name])
    return _plugins().get(name)


def _on_use(name: str, module: str) -> SchedulerFactory:
    def create(session_name: str, **kwargs: Any) -> "Scheduler[Any]":
        from importlib import import_module

        scheduler: Scheduler[Any] = import_module(module).create_scheduler(session_name, **kwargs)
        scheduler.backend = name
        return scheduler

    return create


def _plugins() -> dict[str, SchedulerFactory]:
    """Return the schedulers of packages; those of TorchX's plugins work as they are."""
    from torchloom.torchx import plugins

    of_torchx = plugins.registry().get(plugins.PluginType.SCHEDULER)
    return {**of_torchx, **plugins.entry_point_factories(GROUP)}
