"""Whatever changed between two runs is seen by the second, and no two ranks draw the same."""

import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.launch.keeper import zygote_client
from torchloom.launch.keeper.python_command import PythonCommand
from torchloom.unix import send_message

from ...harness.home import until
from .ranks import PATIENCE, SCRIPTS, Outcome, Process, Ranks, base

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]


def test_unseeded_draws_differ_between_ranks_and_between_runs(plain: Ranks) -> None:
    words = (sys.executable, "draws.py")

    runs = [plain.run(words, base()) for _ in range(3)]
    runs.append(Process(words, base(), "", SCRIPTS).outcome())

    assert [run.stderr for run in runs] == [""] * 4
    for drawn in zip(*(json.loads(run.stdout) for run in runs), strict=True):
        assert len(set(drawn)) == 4


def test_ps_and_proc_show_the_command_and_its_environment(plain: Ranks) -> None:
    words = [sys.executable, "blocked.py", "two words", "x" * 5000]
    env = {"LOOM_JOB": "job-1", **base(), "LONG": "y" * 9000}

    number, ends = plain.start(words, env)
    proc = Path(f"/proc/{plain.pid(number)}")
    os.read(ends[1], 10)
    shown = (proc / "cmdline").read_bytes(), (proc / "environ").read_bytes()
    name = (proc / "comm").read_text()
    for fd in ends:
        os.close(fd)

    assert shown[0] == b"".join(os.fsencode(word) + b"\0" for word in words)
    assert shown[1] == b"".join(os.fsencode(f"{k}={v}") + b"\0" for k, v in env.items())
    assert name == Path(sys.executable).name + "\n"
    assert plain.exit_code(number) == 0


def test_an_edited_module_of_the_user_is_seen(plain: Ranks, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import model; print(model.SIZE)")
    seen = []

    for size in (1, 2):
        (tmp_path / "model.py").write_text(f"SIZE = {size}")
        seen.append(plain.run((sys.executable, "train.py"), base(), cwd=tmp_path).stdout)

    assert seen == ["1\n", "2\n"]


def test_a_module_beside_the_script_comes_before_an_installed_one(
    plain: Ranks, tmp_path: Path
) -> None:
    (tmp_path / "sympy.py").write_text("HERE = True")
    (tmp_path / "train.py").write_text("import sympy, sys; print(sympy.HERE, sys.argv)")
    words = (sys.executable, "train.py", "x")

    outcome = plain.run(words, base(), cwd=tmp_path)

    assert outcome == Outcome(0, "True ['train.py', 'x']\n", "")


@pytest.mark.parametrize(
    "name", ["OMP_NUM_THREADS", "PYTHONPATH", "TORCH_LOGS", "LANG", "THP_MEM_ALLOC_ENABLE"]
)
def test_a_rank_with_another_import_time_variable_is_not_forked(plain: Ranks, name: str) -> None:
    words = (sys.executable, "-c", "import os, sys; print('torch' in sys.modules, os.environ[ARG])")
    words = (*words[:2], words[2].replace("ARG", repr(name)))

    outcome = plain.run(words, {**base(), name: "C"})

    assert outcome.stdout == "False C\n"
    assert plain.cold(plain.last) == f"{name} differs"


@pytest.fixture
def venv(tmp_path: Path) -> Iterator[Path]:
    """Return the site-packages of a virtual environment that has all of ours, linked."""
    folder = tmp_path / "venv"
    packages = folder / "lib" / Path(sysconfig.get_path("stdlib")).name / "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        (packages / entry.name).symlink_to(entry)
    yield packages
    zygote_client.leave_all()


def test_an_edited_installed_module_is_seen_by_the_next_run(own: Path, venv: Path) -> None:
    (venv / "colour.py").write_text("NAME = 'red'")
    (venv / "colour.pth").write_text("import colour")

    first = _run_warm(venv, "import colour; print(colour.NAME)")
    (venv / "colour.py").write_text("NAME = 'blue'")
    second = _run_warm(venv, "import colour; print(colour.NAME)")

    assert (first, second) == ("red\n", "blue\n")


@pytest.mark.parametrize("way", ["PYTHONPATH", "a .pth file"])
def test_an_edited_module_from_elsewhere_is_seen_by_the_next_run_and_both_are_warm(
    own: Path, venv: Path, tmp_path: Path, way: str
) -> None:
    (library := tmp_path / "library").mkdir()
    by_file = way != "PYTHONPATH"
    (venv / "colour.pth").write_text(f"{library}\n" * by_file + "import colour")
    env = {} if by_file else {"PYTHONPATH": str(library)}
    runs = []

    for name in ("red", "blue"):
        (library / "colour.py").write_text(f"NAME = {name!r}")
        os.utime(library / "colour.py", ns=(1, 1))  # as a copy that keeps its date
        runs.append(_run_warm(venv, "import colour; print(colour.NAME)", **env))

    assert runs == ["red\n", "blue\n"]
    (library / "train.py").write_text("import sys; print('torch' in sys.modules)")
    (library / "colour.py").write_text("NAME = 'green'")
    # beside the program it is the program's own, and nothing of that is in a zygote
    assert _run(venv, (str(library / "train.py"),), env) == "False\n"


def test_an_edit_is_seen_though_the_zygote_looked_for_a_run_that_never_came(
    own: Path, venv: Path
) -> None:
    (venv / "colour.py").write_text("NAME = 'red'")
    (venv / "colour.pth").write_text("import colour")
    first = _run_warm(venv, "import colour; print(colour.NAME)")

    _have_it_look(_zygote(venv), "another run")
    (venv / "colour.py").write_text("NAME = 'blue'")
    second = _run_warm(venv, "import colour; print(colour.NAME)")

    assert (first, second) == ("red\n", "blue\n")


def test_a_zygote_that_was_alerted_looks_once_for_that_run_and_again_for_the_next(
    own: Path, venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOOM_WARM", raising=False)
    (venv / "colour.py").write_text("NAME = 'red'")
    (venv / "colour.pth").write_text("import colour")
    _run_warm(venv, "import colour")

    zygote_client.alert()
    _have_it_look(_zygote(venv), None)
    (venv / "colour.py").write_text("NAME = 'blue'")
    runs = [_run_warm(venv, "import colour; print(colour.NAME)") for _ in range(2)]

    assert runs == ["red\n", "blue\n"]


def _have_it_look(zygote: zygote_client.ZygoteClient, word: str | None) -> None:
    """Alert a zygote, if there is a word, and come back when it has done all it was told."""
    if word is not None:
        zygote.alert(word)
    channel = zygote.connect()
    assert channel is not None
    with channel:
        send_message(
            channel, {}
        )  # nothing it knows: it hangs up when it is through with those before
        assert channel.recv(1) == b""


def test_an_interpreter_whose_torch_starts_threads_stays_cold(own: Path, venv: Path) -> None:
    (venv / "thready.py").write_text(
        "import threading, time\n"
        "def start(): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    (venv / "thready-1.dist-info").mkdir()
    (venv / "thready-1.dist-info" / "METADATA").write_text("Name: thready\nVersion: 1\n")
    (venv / "thready-1.dist-info" / "entry_points.txt").write_text(
        "[torch.backends]\nthready = thready:start\n"
    )
    zygote = _zygote(venv)

    zygote.start()

    assert not zygote.ready(PATIENCE)
    assert zygote.keeper({}) == zygote_client.Cold("importing torch starts threads: 2 are there")


def test_another_package_version_interpreter_variable_or_flag_is_another_zygote(
    own: Path, venv: Path
) -> None:
    before = _zygote(venv).key

    (venv / "colour-1.dist-info").mkdir()
    installed = _zygote(venv).key
    (venv / "colour-1.dist-info").rename(venv / "colour-2.dist-info")
    upgraded = _zygote(venv).key
    other_variable = _zygote(venv, MKL_NUM_THREADS="3").key
    other_flag = _find((str(_interpreter(venv)), "-B", "x.py"), base()).key
    other_venv = _find((sys.executable, "x.py"), base()).key

    keys = {before, installed, upgraded, other_variable, other_flag, other_venv}
    assert len(keys) == 6
    assert (
        _zygote(venv, RANK="3", TORCHELASTIC_RUN_ID="x", CUDA_VISIBLE_DEVICES="1").key == upgraded
    )


def _interpreter(packages: Path) -> Path:
    return packages.parents[2] / "bin" / "python"


def _zygote(packages: Path, **env: str) -> zygote_client.ZygoteClient:
    return _find((str(_interpreter(packages)), "x.py"), {**base(), **env})


def _find(words: tuple[str, ...], env: dict[str, str]) -> zygote_client.ZygoteClient:
    found = zygote_client.find(PythonCommand.parse(words), env, os.sep)
    assert isinstance(found, zygote_client.ZygoteClient), found
    return found


def _run_warm(packages: Path, code: str, **env: str) -> str:
    """Return what the code prints in a fork, of a new zygote if the old one will not do."""
    return _run(packages, ("-c", f"import sys; assert 'torch' in sys.modules\n{code}"), env)


def _run(packages: Path, words: tuple[str, ...], more: dict[str, str]) -> str:
    words, env = (str(_interpreter(packages)), *words), {**base(), **more}
    ranks: list[Ranks] = []

    def warmed() -> bool:
        try:
            ranks.append(Ranks((words[0], "main.py"), env, packages.parents[3]))
        except AssertionError:  # the old one has just left
            return False
        return True

    until(warmed, PATIENCE)
    try:
        return ranks[0].run(words, env).stdout
    finally:
        ranks[0].close(and_zygote=False)
