"""Unmodified scripts meet in the file the launcher chose; everything else is torch's as ever."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ...harness import forked_ranks as ranks
from ...harness.forked_ranks import Zygote, free_port, seats, taken_port
from ...harness.home import python

KILLING = Path(__file__).with_name("killing.py")
SUM = """
import torch, torch.distributed as dist
{how}
value = torch.ones(3) * dist.get_rank()
dist.all_reduce(value)
print(value.tolist())
dist.destroy_process_group()
"""
KIND_OF_STORE = """
import torch.distributed as dist
store, rank, world = next(iter(dist.rendezvous({arguments})))
print(type(store).__name__, rank, world)
"""


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with ranks.started_zygote() as one:
        yield one


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give the test the job's folder in shared memory, as an agent makes it."""
    made = Path(tempfile.mkdtemp(prefix="loom-test-", dir="/dev/shm"))
    yield made
    shutil.rmtree(made)


@pytest.mark.process
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    "how",
    [
        "dist.init_process_group()",
        'dist.init_process_group("gloo")',
        'dist.init_process_group("gloo", init_method="env://")',
        'dist.init_process_group("gloo", rank=int(__import__("os").environ["RANK"]), world_size=4)',
        'dist.init_device_mesh("cpu", (2, 2))',
    ],
)
def test_an_unmodified_script_meets_in_the_file(zygote: Zygote, folder: Path, how: str) -> None:
    with taken_port() as port:  # nobody could serve a store there
        ended = zygote.run(SUM.format(how=how), seats(4, port, f"file://{folder}/attempt-0"))

    assert ended == [(0, "[6.0, 6.0, 6.0]\n")] * 4
    assert os.listdir(folder) == ["attempt-0"]


TRAINING = """
import hashlib, os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
digest = hashlib.sha256()
for size in (1, 7, 1000, 100_003):
    value = torch.randn(size, generator=generator)
    dist.all_reduce(value)
    digest.update(value.numpy().tobytes())
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as out:
    out.write(digest.hexdigest())
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.process
@pytest.mark.needs("torch")
def test_fresh_interpreters_reduce_to_the_bits_torchrun_reduces_to(
    folder: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    for name in ("torchrun", "ours"):
        (tmp_path / name).mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    entry = (
        "import runpy, sys; from torchloom.worker.process import rendezvous; rendezvous.install();"
        f"sys.argv = {[str(script), str(tmp_path / 'ours')]}; runpy.run_path(sys.argv[0])"
    )

    subprocess.run([*torchrun, script, tmp_path / "torchrun"], check=True, capture_output=True)
    with taken_port() as port:
        started = [
            subprocess.Popen([sys.executable, "-c", entry], env={**os.environ, **seat})
            for seat in seats(3, port, f"file://{folder}/attempt-0")
        ]
        codes = [one.wait(ranks.LIMIT) for one in started]

    assert codes == [0, 0, 0]
    assert _texts(tmp_path / "ours") == _texts(tmp_path / "torchrun")
    assert len(_texts(tmp_path / "ours")) == 3


def _texts(where: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in where.iterdir()}


@pytest.mark.process
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("before", "arguments", "kind"),
    [
        ("", "'env://'", "FileStore 0 1"),
        ("", "'env://?use_libuv=0'", "FileStore 0 1"),
        ("", "'env://', rank=0, world_size=1", "FileStore 0 1"),
        ("os.environ['MASTER_ADDR'] = 'localhost'", "'env://'", "TCPStore 0 1"),
        ("os.environ['MASTER_PORT'] = '{other}'", "'env://'", "TCPStore 0 1"),
        ("os.environ['RANK'] = '00'", "'env://'", "TCPStore 0 1"),
        ("os.environ['WORLD_SIZE'] = '01'", "'env://'", "TCPStore 0 1"),
        ("del os.environ['LOOM_STORE']", "'env://'", "TCPStore 0 1"),
        ("os.fork() and (os.wait(), os._exit(0))", "'env://'", "TCPStore 0 1"),
        ("", "'env://?novel=1'", "TCPStore 0 1"),
        ("", "'file://{folder}/own', rank=0, world_size=1", "FileStore 0 1"),
    ],
)
def test_only_the_launchers_own_group_meets_in_its_file(
    zygote: Zygote, folder: Path, before: str, arguments: str, kind: str
) -> None:
    script = f"import os\n{before}\n{KIND_OF_STORE.format(arguments=arguments)}"
    script = script.replace("{other}", str(free_port())).replace("{folder}", str(folder))

    ended = zygote.run(script, seats(1, free_port(), f"file://{folder}/attempt-0"))

    assert ended == [(0, f"{kind}\n")]
    assert (folder / "attempt-0").exists() == (kind.startswith("File") and "own" not in arguments)


@pytest.mark.process
@pytest.mark.needs("torch")
@pytest.mark.parametrize("arguments", ["rank=0, world_size=1", "rank=0", "world_size=1"])
def test_a_world_of_the_scripts_own_is_left_to_torch(
    zygote: Zygote, folder: Path, arguments: str
) -> None:
    seat = {**seats(1, free_port(), f"file://{folder}/attempt-0")[0], "RANK": "1"}
    change = "os.environ.update(RANK='0', WORLD_SIZE='1')" if "," not in arguments else ""
    script = f"import os\n{change}\n" + KIND_OF_STORE.format(arguments=f"'env://', {arguments}")

    ended = zygote.run(script, [{**seat, "WORLD_SIZE": "2"}])

    assert ended == [(0, "TCPStore 0 1\n")]
    assert os.listdir(folder) == []


MEET = KIND_OF_STORE.format(arguments="'env://'")
MEET_AS_A_RANK = f"from torchloom.worker.process import rendezvous\nrendezvous.install()\n{MEET}"


@pytest.mark.process
@pytest.mark.needs("torch")
def test_a_program_that_a_rank_starts_does_not_sit_down_on_its_seat(
    zygote: Zygote, folder: Path
) -> None:
    start = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]])"
    script = f"{MEET}\nimport sys\nsys.stdout.flush()\nsys.argv = ['', {MEET_AS_A_RANK!r}]\n{start}"

    ended = zygote.run(script, seats(1, free_port(), f"file://{folder}/attempt-0"))

    assert ended == [(0, "FileStore 0 1\nTCPStore 0 1\n")]


@pytest.mark.process
@pytest.mark.needs("torch")
def test_a_rank_that_replaces_itself_goes_on_with_the_next_file(
    zygote: Zygote, folder: Path
) -> None:
    leave = f"os.execv(sys.executable, [sys.executable, '-c', {MEET_AS_A_RANK!r}])"
    script = f"{MEET}\nimport os, sys\nsys.stdout.flush()\n{leave}"

    ended = zygote.run(script, seats(1, free_port(), f"file://{folder}/attempt-0"))

    assert ended == [(0, "FileStore 0 1\nFileStore 0 1\n")]
    assert sorted(os.listdir(folder)) == ["attempt-0", "attempt-0.1"]


@pytest.mark.process
@pytest.mark.needs("torch")
def test_every_group_of_a_process_meets_in_a_file_of_its_own(zygote: Zygote, folder: Path) -> None:
    again = "".join(SUM.format(how='dist.init_process_group("gloo")') for _ in range(3))

    ended = zygote.run(again, seats(4, free_port(), f"file://{folder}/attempt-0"))

    assert ended == [(0, "[6.0, 6.0, 6.0]\n" * 3)] * 4
    assert sorted(os.listdir(folder)) == ["attempt-0", "attempt-0.1", "attempt-0.2"]


@pytest.mark.process
@pytest.mark.needs("torch")
def test_a_peer_that_never_comes_is_waited_for_as_long_as_the_script_says(
    zygote: Zygote, folder: Path
) -> None:
    script = """
import datetime, time, torch.distributed as dist
begun = time.monotonic()
try:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=1))
except RuntimeError:
    print(0.9 < time.monotonic() - begun < 10)
"""

    ended = zygote.run(script, seats(2, free_port(), f"file://{folder}/attempt-0")[:1])

    assert [(code, text.splitlines()[-1]) for code, text in ended] == [(0, "True")]


@pytest.mark.process
@pytest.mark.needs("torch")
def test_subgroups_barriers_objects_and_rpc_work_over_the_file(
    zygote: Zygote, folder: Path
) -> None:
    script = """
import torch, torch.distributed as dist, torch.distributed.rpc as rpc
dist.init_process_group("gloo")
me = dist.get_rank()
pairs = [dist.new_group([0, 1]), dist.new_group([1, 2])]
value = torch.ones(1)
for pair in pairs:
    if dist.get_rank(pair) >= 0:
        dist.all_reduce(value, group=pair)
dist.monitored_barrier()
said = [None] * 3
dist.all_gather_object(said, {"rank": me, "value": value.item()})
store = dist.distributed_c10d._get_default_store()
store.set(f"from-{me}", "here")
said.append(store.get(f"from-{(me + 1) % 3}").decode())
rpc.init_rpc(f"rank{me}", rank=me, world_size=3)
said.append(rpc.rpc_sync(f"rank{(me + 1) % 3}", torch.add, (torch.ones(1), 1)).item())
rpc.shutdown()
dist.destroy_process_group()
print(said)
"""

    ended = zygote.run(script, seats(3, free_port(), f"file://{folder}/attempt-0"))

    values = [{"rank": 0, "value": 2.0}, {"rank": 1, "value": 3.0}, {"rank": 2, "value": 3.0}]
    last_lines = [(code, text.splitlines()[-1]) for code, text in ended]
    assert last_lines == [(0, str([*values, "here", 2.0]))] * 3


@pytest.mark.process
@pytest.mark.needs("torch")
def test_forks_that_end_with_the_ranks_store_do_not_take_it_away(
    zygote: Zygote, folder: Path
) -> None:
    script = """
import datetime, os, torch.distributed as dist
store, rank, world = next(dist.rendezvous("env://", timeout=datetime.timedelta(seconds=9)))
store.set(f"before-{rank}", "x")
store.wait(["before-0", "before-1"])
child = os.fork()
if not child:
    del store
    os._exit(0)
os.waitpid(child, 0)
store.set(f"after-{rank}", "there")
print(store.get(f"after-{1 - rank}").decode(), os.path.exists(store.path))
"""

    ended = zygote.run(script, seats(2, free_port(), f"file://{folder}/attempt-0"))

    assert ended == [(0, "there True\n")] * 2


@pytest.mark.process
@pytest.mark.needs("torch")
def test_without_the_folder_the_ranks_meet_at_their_address(zygote: Zygote, folder: Path) -> None:
    script = SUM.format(how='dist.init_process_group("gloo")')

    ended = zygote.run(script, seats(2, free_port(), f"file://{folder}/gone/attempt-0"))

    note = f"no store file, ranks meet at MASTER_ADDR: cannot write to {folder}/gone\n"
    assert ended == [(0, f"{note}[1.0, 1.0, 1.0]\n")] * 2


@pytest.mark.process
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    "rounds", [pytest.param(4, id="short"), pytest.param(20, id="long", marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("kind", ["file", "process"])
def test_the_attempt_after_a_kill_always_comes_up(kind: str, rounds: int) -> None:
    words = [sys.executable, KILLING, kind, "7", str(rounds)]

    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=True)

    assert [one["codes"] for one in json.loads(done.stdout)] == [[0, 0, 0, 0]] * rounds


@pytest.mark.process
def test_installing_imports_neither_torch_nor_anything_slow() -> None:
    done = python(
        "import os, sys, typing\n"
        "os.environ.update(LOOM_STORE='file:///dev/shm/x/y', RANK='0', WORLD_SIZE='1')\n"
        "before = set(sys.modules)\n"
        "from torchloom.worker.process import rendezvous\n"
        "rendezvous.install()\n"
        "print(type(sys.meta_path[0]).__name__, sorted(set(sys.modules) - before))"
    )

    ours = ["torchloom", "torchloom.worker", "torchloom.worker.process"]
    ours = ["__future__", *ours, "torchloom.worker.process.rendezvous"]
    ours += ["torchloom.worker.threadlet", "torchloom.worker.threadlet.import_hook"]
    assert done.stdout == f"_HookFinder {ours}\n"


STAND_IN = {
    "as today": "_rendezvous_handlers = {'env': lambda url, **more: iter([('torch', 0, 1)])}\n",
    "no handlers": "nothing = 0\n",
    "no env": "_rendezvous_handlers = {}\n",
    "another kind": "_rendezvous_handlers = ['env']\n",
    "no function": "_rendezvous_handlers = {'env': None}\n",
}
IMPORT = """
import importlib, importlib.util, inspect, os, sys
sys.path.insert(0, sys.argv[1])
os.environ.update(LOOM_STORE=f"file://{sys.argv[1]}/store", RANK="0", WORLD_SIZE="1")
from torchloom.worker.process import rendezvous
rendezvous.install()
rendezvous.install()
waiting = len(sys.meta_path)
import jax._src.clusters.cluster
import torch.distributed.rendezvous
module = sys.modules["torch.distributed.rendezvous"]
print(waiting - len(sys.meta_path), type(module.__loader__).__name__, module.__spec__.loader is
      module.__loader__, inspect.getsource(module) == open(module.__file__).read())
found = importlib.util.find_spec("torch.distributed.rendezvous")
print(found is module.__spec__, importlib.reload(module) is module)
"""


@pytest.mark.process
@pytest.mark.parametrize("source", STAND_IN.values(), ids=STAND_IN.keys())
def test_a_torch_that_works_otherwise_is_imported_untouched(tmp_path: Path, source: str) -> None:
    _stand_in(tmp_path, source)
    cluster = tmp_path / "jax" / "_src" / "clusters" / "cluster.py"
    cluster.parent.mkdir(parents=True)
    cluster.write_text("class ClusterEnv: pass\n")

    done = python(IMPORT, str(tmp_path))

    assert (done.stdout, done.stderr) == ("1 SourceFileLoader True True\nTrue True\n", "")


CALL = """
import os, sys
sys.path.insert(0, sys.argv[1])
os.environ.update(LOOM_STORE=f"file://{sys.argv[1]}/store", RANK="0", WORLD_SIZE="1")
from torchloom.worker.process import rendezvous
rendezvous.install()
import torch.distributed.rendezvous as module
print(*[next(module._rendezvous_handlers["env"]("env://", timeout=5)) for _ in range(2)])
"""


@pytest.mark.parametrize(
    ("stores", "met"),
    [
        (
            "class FileStore:\n"
            "    def __init__(self, path, workers): self.name = path.rpartition('/')[2]\n"
            "    def set_timeout(self, timeout): self.timeout = timeout\n"
            '    def __repr__(self): return f"{self.name} {self.timeout}"\n',
            "(store 5, 0, 1) (store.1 5, 0, 1)\n",
        ),
        ("class FileStore:\n    def __init__(self, url): pass\n", "torch"),
        ("class FileStore:\n    def __init__(self, path, workers): pass\n", "torch"),
        ("", "torch"),
    ],
    ids=["as today", "other arguments", "no timeout", "no file store"],
)
def test_a_torch_with_other_stores_uses_its_own(tmp_path: Path, stores: str, met: str) -> None:
    prefix = "class PrefixStore:\n    def __init__(self, *words): pass\n"
    repeat = "    def __repr__(self): return 'apart'\n"
    _stand_in(tmp_path, STAND_IN["as today"], stores + prefix + repeat)

    done = python(CALL, str(tmp_path))

    assert done.stdout == ("('torch', 0, 1) (apart, 0, 1)\n" if met == "torch" else met)


def _stand_in(folder: Path, rendezvous: str, distributed: str = "") -> None:
    """Write a package that has torch's names and nothing else."""
    package = folder / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text(distributed)
    (package / "rendezvous.py").write_text(rendezvous)
