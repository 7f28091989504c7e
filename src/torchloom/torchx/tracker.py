"""Metadata, artifacts and sources of a run, kept by trackers: TorchX's API for programs.

A program asks for its run by `app_run_from_env()`. Its trackers are those of the config file
(`[torchx:tracker]`); without any, a run of torchloom keeps what it is given in its own tracker.
"""

import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torchloom import settings
from torchloom.errors import UserError, shorten

TRACKERS = "TORCHX_TRACKERS"
JOB_ID = "TORCHX_JOB_ID"
PARENT = "TORCHX_PARENT_RUN_ID"
UNDEFINED = "<UNDEFINED>"
OWN = "loom"  # the tracker of torchloom's own runs
_BUILT_IN = {
    "fsspec": "torchloom.torchx.fsspec_tracker:create",
    OWN: "torchloom.launch.records.tracker:create",
}


@dataclass
class TrackerSource:
    """A run, or something else with an id, that a run was made from."""

    source_run_id: str
    artifact_name: str | None


@dataclass
class TrackerArtifact:
    """A file or folder that a run made."""

    name: str
    path: str
    metadata: Mapping[str, object] | None


@dataclass
class AppRunTrackableSource:
    """A source of a run, as a run of its own."""

    parent: "AppRun"
    artifact_name: str | None


@dataclass
class Lineage:
    """What a run was made from, and the ids of the runs that were made from it."""

    sources: list[TrackerSource] = field(default_factory=list)
    descendants: list[str] = field(default_factory=list)


class TrackerBase(ABC):
    """Where facts about runs are kept. A run is named by its handle."""

    @abstractmethod
    def add_artifact(
        self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None
    ) -> None:
        """Note an artifact of a run."""

    @abstractmethod
    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        """Return the artifacts of a run, by name."""

    @abstractmethod
    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Note facts about a run."""

    @abstractmethod
    def metadata(self, run_id: str) -> Mapping[str, object]:
        """Return the facts about a run."""

    @abstractmethod
    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Note what a run was made from."""

    @abstractmethod
    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        """Return what a run was made from."""

    @abstractmethod
    def lineage(self, run_id: str) -> Lineage:
        """Return what a run was made from, and what was made from it."""

    @abstractmethod
    def run_ids(self, **kwargs: str) -> Iterable[str]:
        """Return the runs that are known; `parent_run_id` keeps those made from that one."""


@dataclass
class AppRun:
    """One run, in all trackers that were chosen for it.

    Example:
        >>> from torchloom.torchx.tracker import AppRun
        >>> run = AppRun(id="local://torchx/gpt", backends=[])
        >>> run.add_metadata(lr=0.01)
        >>> run.job_id()
        'local://torchx/gpt'
    """

    id: str
    backends: Iterable[TrackerBase]

    @staticmethod
    @cache
    def run_from_env() -> "AppRun":
        """Return the run of this process; outside of a run, one whose writes do nothing."""
        env = settings.environment()
        job = env.get(JOB_ID, UNDEFINED)
        trackers = list(trackers_from_environ())
        if env.get(PARENT):
            for tracker in trackers:
                tracker.add_source(job, env[PARENT], artifact_name=None)
        return AppRun(id=job, backends=trackers)

    def job_id(self) -> str:
        """Return the handle of the run."""
        return self.id

    def add_metadata(self, **kwargs: object) -> None:
        """Note facts about this run."""
        for tracker in self.backends:
            tracker.add_metadata(self.id, **kwargs)

    def add_artifact(
        self, name: str, path: str, metadata: Mapping[str, object] | None = None
    ) -> None:
        """Note an artifact of this run."""
        for tracker in self.backends:
            tracker.add_artifact(self.id, name, path, metadata)

    def add_source(self, source_id: str, artifact_name: str | None = None) -> None:
        """Note what this run was made from."""
        for tracker in self.backends:
            tracker.add_source(self.id, source_id, artifact_name)

    def sources(self) -> Iterable[AppRunTrackableSource]:
        """Return what this run was made from, by the first tracker."""
        found = next((tracker.sources(self.id) for tracker in self.backends), ())
        return [
            AppRunTrackableSource(AppRun(each.source_run_id, self.backends), each.artifact_name)
            for each in found
        ]

    def children(self) -> "Iterable[AppRun]":
        """Return the runs that were made from this one, by the first tracker."""
        ids = next((tracker.run_ids(parent_run_id=self.id) for tracker in self.backends), ())
        return [AppRun(each, self.backends) for each in ids]


def app_run_from_env() -> AppRun:
    """Return the run of this process."""
    return AppRun.run_from_env()


def tracker_config_env_var_name(entrypoint_key: str) -> str:
    """Return the variable that has the config of a tracker."""
    return f"TORCHX_TRACKER_{entrypoint_key.upper()}_CONFIG"


def trackers_from_environ() -> Iterable[TrackerBase]:
    """Return the trackers that `TORCHX_TRACKERS` names; in a run of torchloom, else its own."""
    env = settings.environment()
    names = [name for name in env.get(TRACKERS, "").split(",") if name]
    if not names and env.get("LOOM_JOB") and JOB_ID in env:
        names = [OWN]
    return build_trackers({name: env.get(tracker_config_env_var_name(name)) for name in names})


def build_trackers(factory_and_config: Mapping[str, str | None]) -> Iterable[TrackerBase]:
    """Return the trackers of these names, each made with its config.

    A name is that of a plugin, of a tracker of torchloom (`fsspec`, `loom`) or `MODULE:FUNCTION`.
    One that is not there is left out with a warning: a run must not fail for it.
    """
    made = []
    for name, config in factory_and_config.items():
        factory = _factory(name)
        if factory is None:
            problem = "no tracker %r: name an installed one, fsspec, loom or MODULE:FUNCTION"
            logging.getLogger(__name__).warning(problem, shorten(name))
        else:
            made.append(factory(config))
    return made


def _factory(name: str) -> Callable[[str | None], TrackerBase] | None:
    from torchloom.torchx import plugins

    found = plugins.registry().get(plugins.PluginType.TRACKER).get(name)
    return found or _loaded(_BUILT_IN.get(name, name))


def _loaded(place: str) -> Callable[[str | None], TrackerBase] | None:
    module, _, attribute = place.partition(":")
    try:
        loaded: Any = importlib.import_module(module)
    except (ImportError, ValueError):
        return None
    found = getattr(loaded, attribute or "create", None)
    return found if callable(found) else None


class BadTrackerConfig(UserError, ValueError):
    """The config file of a tracker cannot be used."""

    code = "bad_tracker_config"
