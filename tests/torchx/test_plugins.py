"""Packages written for TorchX are found and work as they are."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchloom.errors import UserError
from torchloom.runner import Runner, get_runner
from torchloom.specs.api import AppDef, AppState, Resource, Role, runopts
from torchloom.specs.named import NamedResources, installed
from torchloom.specs.overlays import set_overlay
from torchloom.torchx import plugins

PACKAGE = Path(__file__).with_name("package")
Install = Callable[[str, str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a module of the package with an entry point, or below `torchx_plugins`."""
    site = tmp_path / "site"
    before, hooks = set(sys.modules), list(sys.meta_path)

    def put(module: str, place: str) -> Path:
        if place.startswith("["):
            info = site / f"{module}-1.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
            (info / "entry_points.txt").write_text(place)
            place = ""
        (site / place).mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(PACKAGE / f"{module}.py", site / place))

    monkeypatch.syspath_prepend(site)
    plugins.registry.cache_clear()
    yield put
    plugins.registry.cache_clear()
    sys.meta_path[:] = hooks
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("torchx", "torchx_plugins", "tx_folder"):
            del sys.modules[name]


@pytest.fixture
def folders(install: Install, tmp_path: Path) -> Iterator[Runner]:
    install("tx_folder", "[torchx.schedulers]\nfolder = tx_folder:create_scheduler\n")
    (tmp_path / "apps").mkdir()
    with get_runner(root=str(tmp_path / "apps")) as runner:
        yield runner


def app() -> AppDef:
    small = Resource(1, 0, 1)
    role = Role("echo", "", entrypoint="echo", args=["${replica_id}"], resource=small)
    role.num_replicas = 2
    set_overlay(role, "folder", "Note", {"text": "noted"})
    return AppDef("hello", [role])


def test_a_scheduler_of_a_package_for_torchx_works_as_it_is(
    folders: Runner, tmp_path: Path
) -> None:
    cfg = folders.cfg_from_str("folder", f"root={tmp_path / 'apps'},copies=2")

    info = folders.dryrun(app(), "folder", cfg)
    handle = folders.schedule(info)
    status = folders.wait(handle)

    assert handle.startswith("folder://torchx/hello-")
    assert "'echo-1': 'echo 1 noted\\necho 1 noted\\n'" in repr(info)
    assert status is not None
    assert (status.state, [len(role.replicas) for role in status.roles]) == (
        AppState.SUCCEEDED,
        [2],
    )
    assert list(folders.log_lines(handle, "echo", 1)) == ["echo 1 noted\n"] * 2
    assert list(folders.log_lines(handle, "echo", 0, regex="nothing")) == []
    assert [f"folder://torchx/{each.app_id}" for each in folders.list("folder")] == [handle]
    folders.cancel(handle)
    cancelled = folders.status(handle)
    assert cancelled is not None
    assert cancelled.state is AppState.CANCELLED


def test_its_options_are_read_and_checked(folders: Runner) -> None:
    options = folders.scheduler_run_opts("folder")

    assert isinstance(options, runopts)
    assert [(key, one.opt_type, one.is_required, one.help) for key, one in options] == [
        ("root", str, True, "where the folders are"),
        ("copies", int, False, "how often each command is written"),
    ]
    with pytest.raises(UserError, match="option 'root' is required"):
        folders.dryrun(app(), "folder")


def test_it_is_listed_beside_the_built_in_ones(folders: Runner) -> None:
    assert {"folder", "local", "slurm"} <= set(folders.scheduler_backends())


def test_marked_functions_are_found(install: Install) -> None:
    install("tx_marked", "torchx_plugins/named_resources")

    library = NamedResources(installed)
    found = plugins.registry()

    assert (library["box"].gpu, library["crate_2"].gpu, library["crate"].cpu) == (4, 2, 32)
    assert library["crate_1"].is_fractional()
    assert library["crate_4"].get_resource_name() == "crate_4"
    entry = {
        "name": "crate",
        "module": "torchx_plugins.named_resources.tx_marked",
        "aliases": ["box"],
        "fractionals": ["crate_1", "crate_2", "crate_4"],
    }
    assert found.to_dict()["named_resource"] == [entry]
    (misplaced,) = found.load_errors(plugins.PluginType.SCHEDULER)
    assert (misplaced.name, misplaced.plugin_type) == ("elsewhere", "scheduler")
    assert misplaced.error == "is a scheduler: move it to torchx_plugins.schedulers"


def test_sources_can_be_switched_off(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("tx_marked", "torchx_plugins/named_resources")
    install("tx_folder", "[torchx.schedulers]\nfolder = tx_folder:create_scheduler\n")
    monkeypatch.setenv("TORCHX_PLUGINS_SOURCE", "2")

    assert plugins.registry().get(plugins.PluginType.NAMED_RESOURCE) == {}
    assert list(plugins.registry().get(plugins.PluginType.SCHEDULER)) == ["folder"]

    plugins.registry.cache_clear()
    monkeypatch.setenv("TORCHX_PLUGINS_SOURCE", "four")
    with pytest.raises(ValueError, match="TORCHX_PLUGINS_SOURCE is 'four'; set it to 0"):
        plugins.registry()


def test_what_cannot_be_imported_is_reported(install: Install) -> None:
    broken = install("tx_marked", "torchx_plugins/schedulers")
    broken.write_text("import nothing_of_this_name\n")

    (error,) = plugins.registry().load_errors(plugins.PluginType.SCHEDULER)

    assert error.module == "torchx_plugins.schedulers.tx_marked"
    assert error.error.startswith("ModuleNotFoundError: No module named 'nothing_of_this_name'")
    assert plugins.registry().errors == [error]
