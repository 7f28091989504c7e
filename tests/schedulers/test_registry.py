import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchloom.schedulers import (
    get_default_scheduler_name,
    get_scheduler_factories,
    get_scheduler_factory,
)

PLUGIN = """
from torchloom.schedulers.local_scheduler import LocalScheduler

class Moon(LocalScheduler):
    pass

def create_scheduler(session_name, **kwargs):
    found = Moon("moon", session_name)
    found.kwargs = kwargs
    return found
"""

BUILT_IN = ["local", "local_cwd", "lsf", "pbs", "slurm"]
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution that offers schedulers under these names."""

    def make(*names: str, target: str = "moon_plugin:create_scheduler") -> None:
        info = tmp_path / "moon_plugin-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moon-plugin\nVersion: 1.0\n")
        points = "".join(f"{name} = {target}\n" for name in names)
        (info / "entry_points.txt").write_text(f"[torchloom.schedulers]\n{points}")
        (tmp_path / "moon_plugin.py").write_text(PLUGIN)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "moon_plugin", raising=False)

    return make


def test_this_machine_is_the_default() -> None:
    assert get_default_scheduler_name() == "local"
    assert sorted(get_scheduler_factories()) == BUILT_IN


@pytest.mark.parametrize("name", ["local", "local_cwd"])
def test_a_scheduler_has_the_name_it_was_asked_for_by(name: str) -> None:
    factory = get_scheduler_factory(name)
    assert factory is not None

    scheduler = factory("session", some_param="ignored")

    assert (scheduler.backend, scheduler.session_name) == (name, "session")


def test_an_unknown_scheduler_has_no_factory() -> None:
    assert get_scheduler_factory("nope") is None


def test_a_plugin_adds_to_the_built_in_ones(install: Install) -> None:
    install("moon")

    assert sorted(get_scheduler_factories()) == sorted([*BUILT_IN, "moon"])
    factory = get_scheduler_factory("moon")
    assert factory is not None
    scheduler = factory("session", phase="full")
    assert type(scheduler).__name__ == "Moon"
    assert vars(scheduler)["kwargs"] == {"phase": "full"}


def test_a_plugin_cannot_take_a_built_in_name(install: Install) -> None:
    install("local")

    for factory in (get_scheduler_factory("local"), get_scheduler_factories()["local"]):
        assert factory is not None
        assert type(factory("session")).__name__ == "LocalScheduler"


def test_a_broken_plugin_harms_nobody_who_does_not_use_it(install: Install) -> None:
    install("moon", target="no_such_module:create")

    assert sorted(get_scheduler_factories()) == sorted([*BUILT_IN, "moon"])
