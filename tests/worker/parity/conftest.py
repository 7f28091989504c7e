import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from .ranks import SET_FLAGS, SET_VARIABLES, Ranks, base


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """A zygote for `python SCRIPT` without any flag or variable."""
    words = (sys.executable, "main.py")
    yield from _ranks(words, base(), tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """A zygote for flags and variables that an interpreter reads when it starts."""
    words = (sys.executable, *SET_FLAGS, "main.py")
    yield from _ranks(words, {**base(), **SET_VARIABLES}, tmp_path_factory.mktemp("given"))


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    """Give the test a runtime and a state folder of its own, without a zygote in it."""
    with home(tmp_path):
        yield tmp_path


def _ranks(words: tuple[str, ...], env: Mapping[str, str], folder: Path) -> Iterator[Ranks]:
    with home(folder):
        ranks = Ranks(words, env, folder)
    yield ranks
    with home(folder):
        ranks.close()


@contextlib.contextmanager
def home(folder: Path) -> Iterator[None]:
    """Let sockets and caches lie below a folder for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, name in (("XDG_RUNTIME_DIR", "run"), ("LOOM_HOME", "loom")):
            (folder / name).mkdir(exist_ok=True)
            patch.setenv(variable, str(folder / name))
        yield
