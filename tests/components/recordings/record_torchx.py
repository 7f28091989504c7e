"""Record what TorchX makes of command lines, as truth from outside for torchloom's own tests.

Run it where TorchX is installed (`pip install torchx-nightly`); it rewrites torchx.json:

    python tests/components/recordings/record_torchx.py
"""

import contextlib
import dataclasses
import enum
import io
import json
import os
import warnings
from importlib.metadata import distributions
from pathlib import Path

FOLDER = Path(__file__).parent
SAMPLE = FOLDER / "sample_components.py"

APPS = [
    "dist.ddp --script train.py",
    "dist.ddp -m trainer.main",
    "dist.ddp --m trainer",
    "dist.ddp --script=dir/my train.py",
    "dist.ddp --script train.py -j 2x4",
    "dist.ddp --script train.py -j 4",
    "dist.ddp --script train.py -j2x2",
    "dist.ddp --script train.py -j=1x8",
    "dist.ddp --script train.py -j 1:3x2",
    "dist.ddp --script train.py --j 1:1x2",
    "dist.ddp --script train.py -j 0:1x2",
    "dist.ddp --script train.py -j 2x1 --rdzv_port 12345 --tee 0",
    "dist.ddp --script train.py -j 2x1 --rdzv_backend static",
    "dist.ddp --script train.py --rdzv_conf join_timeout=600,close_timeout=600",
    "dist.ddp --script train.py --name exp/run",
    "dist.ddp --script train.py --name exp/",
    "dist.ddp --script train.py --name /run",
    "dist.ddp --script train.py --name run",
    "dist.ddp --script train.py --name a/b/c",
    "dist.ddp --script train.py --image my/image:1 --max_retries 3",
    "dist.ddp --script train.py -h gpu.small -j 1x1",
    "dist.ddp --script train.py -h GPU.Medium",
    "dist.ddp --script train.py --cpu 8 --gpu 2 --memMB 4096",
    "dist.ddp --script train.py --debug True",
    "dist.ddp --script train.py --debug false",
    "dist.ddp --script train.py --env A=1,B=x;y,C=a,b --metadata owner=me,team=you",
    ["dist.ddp", "--script", "train.py", "--env", "A='x=1, y=2',B=\"q;r\",LOGLEVEL=INFO"],
    ["dist.ddp", "--script", "train.py", "--env", " A = 1 , B = it's "],
    ["dist.ddp", "--script", "train.py", "--env", ""],
    "dist.ddp --script train.py --mounts type=bind,src=/a,dst=/b,readonly,type=volume,src=v,dst=/v",
    "dist.ddp --script train.py --mounts type=device,src=/dev/fuse,perm=rw",
    "dist.ddp --script train.py -- --lr 1e-3 -- --flag",
    "dist.ddp --script train.py a --script other.py",
    ["dist.ddp", "--script", "train.py", "--", "two words", "it's", '"q"', "$HOME", "a\nb", ""],
    ["dist.ddp", "--script", "a b;rm -rf $X.py", "-j", "2x2"],
    "dist.ddp --scr train.py --max 2",
    "dist.ddp --script train.py -1 x",
    "dist.torchrun --script train.py",
    "dist.torchrun -m pkg.train -j 2x4 --name exp/run --max_retries 2 -- --lr 1",
    "dist.spmd --script train.py",
    "dist.spmd --script train.py -h gpu.large -j 2",
    "dist.spmd -m a.b.c -h gpu.xlarge -j 2x8 -- x y",
    "dist.spmd --script train.py -h cpu.small -j 1x1 --name e/r --debug True --env A=1",
    "utils.echo",
    ["utils.echo", "--msg", "hi $there 'you'\n", "--num_replicas", "3", "--image", "i"],
    ["utils.touch", "--file", "/tmp/x y"],
    "utils.touch --file=a=b",
    "utils.sh echo hello $USER",
    ["utils.sh", "-x y", "z"],
    ["utils.sh", "--env", "A=1", "--cpu", "2", "-h", "cpu.nano", "--", "sh", "-c", "echo 'x y'"],
    "utils.sh --entrypoint bash --max_retries 2 --num_replicas 2 -- ls -l",
    "utils.sh --mounts type=bind,source=~/data,target=/data,read_only ls",
    "utils.python -m pkg.main -- --a b",
    ["utils.python", "-c", "import os; print(os.getcwd())"],
    "utils.python --script main.py --name n --num_replicas 2 --gpu 1 x y",
    "utils.binary --entrypoint /bin/ls -- -l /tmp",
    "utils.binary --entrypoint prog --name n --cpu 3 a b",
    "dist.ddp --script train.py --debug 1",
    "dist.ddp --script train.py --env FLAGS=--a=1,--b=2",
    "dist.ddp --script train.py --env A=,B=2",
    "utils.echo --msg -x",
    "utils.echo --num-replicas 2",
]
BROKEN_APPS = [
    "dist.ddp",
    "dist.ddp --script a.py -m b",
    "dist.ddp --script a.py -j 2x",
    "dist.ddp --script a.py -j axb",
    "dist.ddp --script a.py -j x2",
    "dist.ddp --script a.py --cpu two",
    "dist.ddp --script a.py --nonsense 1",
    "dist.ddp --script",
    "dist.ddp --script a.py -h no_such_host",
    "dist.ddp --script a.py --env nonsense",
    "dist.ddp --script a.py --mounts src=/a",
    "dist.spmd --script a.py -h cpu.small -j 2",
    "dist.spmd --script a.py -j 1x2x3",
    "utils.touch",
    "utils.echo hello",
    "utils.python",
    "utils.python -m a -c b",
    "utils.binary ls",
    "dist.nonsense",
]
MOUNTS = [
    [],
    ["type=bind", "src=/a", "dst=/b"],
    ["type=bind", "source=/a", "destination=/b", "readonly"],
    ["type=bind", "src=/a", "target=/b", "read_only=true"],
    ["type=bind", "src=~/a", "dst=/b"],
    ["type=volume", "src=name", "dst=/b", "readonly"],
    ["type=device", "src=/dev/a"],
    ["type=device", "src=/dev/a", "dst=/dev/b", "perm=r"],
    ["type=bind", "src=/a", "dst=/b", "type=bind", "src=/c", "dst=/d=e"],
    ["src=/a"],
    ["type=bind", "src=/a"],
    ["type=bind", "dst=/a"],
    ["type=nonsense", "src=/a", "dst=/b"],
    ["type=device", "src=/a", "perm=rx"],
    ["type=bind", "nonsense=1"],
    [""],
]
ARGS = [
    ["old_hints", ["--name", "n"], None, None],
    [
        "old_hints",
        ["--name", "n", "--flag", "TRUE", "--labels", "a=1", "--sizes", "1, 2"],
        None,
        None,
    ],
    ["old_hints", ["--name=n", "--ratio", "1e-3", "--count", "-3"], None, None],
    ["old_hints", ["--name", "n", "--note", "None"], None, None],
    ["old_hints", ["--name", "cli"], {"name": "default", "count": "7"}, {"name": "config"}],
    ["old_hints", [], {"name": "default", "count": "7", "flag": "True"}, None],
    ["old_hints", [], {"name": "default"}, {"name": "config", "labels": {"a": "b"}}],
    ["old_hints", [], None, {"name": "config", "flag": True, "sizes": [3], "count": 2}],
    ["old_hints", ["--count", "9"], {"name": "d", "count": "7"}, {"count": 8, "unknown": 1}],
    ["new_hints", ["--name", "n", "a", "--b", "--", "c"], None, None],
    ["new_hints", ["--name", "n", "--", "--", "c"], None, None],
    ["new_hints", ["--name", "n", "-k", "x", "-cn", "other"], None, None],
    ["new_hints", ["--name", "n", "--k", "x", "--config_name", "other"], None, None],
    ["new_hints", ["--name", "n", "--weights", "a=1,b=2", "--flag", "False"], None, None],
    ["new_hints", ["--name", "n"], {"words": "a b  c"}, None],
    ["new_hints", ["--name", "n", "x"], {"words": "a b"}, None],
    ["new_hints", ["--name", "n"], None, {"words": ["a b", "c"]}],
    ["new_hints", ["--name", "a", "--name", "b", "--sizes", ""], None, None],
]


def plain(value):
    """Return a value as JSON can hold it; mounts keep the name of their class."""
    if dataclasses.is_dataclass(value):
        fields = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        named = type(value).__name__.endswith("Mount")
        return {"class": type(value).__name__, **fields} if named else fields
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def attempt(action, *arguments):
    """Return what an action gives, or the names of the classes of what it raises."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return {"result": plain(action(*arguments))}
    except (Exception, SystemExit) as error:
        return {"error": [cls.__name__ for cls in type(error).__mro__[:-1]]}


def words_of(case):
    """Return a case as words: one that has no odd ones is written as a line."""
    return case if isinstance(case, list) else case.split(" ")


def main():
    """Record everything."""
    from torchx.specs.builders import component_args_from_str, materialize_appdef, parse_mounts
    from torchx.specs.finder import get_component

    warnings.simplefilter("ignore")
    os.environ.pop("LOGLEVEL", None)
    os.environ["HOME"] = "/home/someone"

    def app(words):
        return materialize_appdef(get_component(words[0]).fn, words[1:])

    def args(name, words, defaults, config):
        fn = get_component(f"{SAMPLE}:{name}").fn
        return component_args_from_str(fn, words, defaults, config)

    lines = [words_of(case) for case in [*APPS, *BROKEN_APPS]]
    recording = {
        "torchx": next(d.version for d in distributions() if d.name.lower().startswith("torchx")),
        "apps": [{"words": words, **attempt(app, words)} for words in lines],
        "args": [{"case": case, **attempt(args, *case)} for case in ARGS],
        "mounts": [{"options": case, **attempt(parse_mounts, case)} for case in MOUNTS],
    }
    (FOLDER / "torchx.json").write_text(json.dumps(recording, indent=1) + "\n")
    print({name: len(part) for name, part in recording.items() if name != "torchx"})


if __name__ == "__main__":
    main()
