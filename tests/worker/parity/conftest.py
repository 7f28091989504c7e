import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from .ranks import SET_FLAGS, SET_VARIABLES, Ranks, base


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """A zygote for `python SCRIPT` without any flag or variable."""
    yield from _ranks((sys.executable, "main.py"), base(), tmp_path_factory)


@pytest.fixture(scope="session")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """A zygote for flags and variables that an interpreter reads when it starts."""
    words = (sys.executable, *SET_FLAGS, "main.py")
    yield from _ranks(words, {**base(), **SET_VARIABLES}, tmp_path_factory)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    """Give the test a runtime and a state folder of its own, without a zygote in it."""
    with home(tmp_path):
        yield tmp_path


def _ranks(
    words: tuple[str, ...], env: Mapping[str, str], temporary: pytest.TempPathFactory
) -> Iterator[Ranks]:
    """Yield a keeper of our own; the zygotes are shared by all that run these tests side by side.

    They leave when they have not been used for a while.
    """
    side_by_side = "PYTEST_XDIST_WORKER" in os.environ
    shared = temporary.getbasetemp().parent if side_by_side else temporary.getbasetemp()
    with home(shared):
        ranks = Ranks(words, env, temporary.mktemp("keeper"))
    yield ranks
    with home(shared):
        ranks.close(and_zygote=not side_by_side)


@contextlib.contextmanager
def home(folder: Path) -> Iterator[None]:
    """Let sockets and caches lie below a folder for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, name in (("XDG_RUNTIME_DIR", "run"), ("LOOM_HOME", "loom")):
            (folder / name).mkdir(exist_ok=True)
            patch.setenv(variable, str(folder / name))
        yield
