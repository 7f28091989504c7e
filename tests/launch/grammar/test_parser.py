"""One grammar, many doors; on torchrun's words torchrun's own parser is the judge."""

import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.errors import UserError
from torchloom.launch.grammar.command import AS_TORCHRUN, LaunchCommand
from torchloom.launch.grammar.parser import OPTIONS, OURS, TORCHRUN, Grammar
from torchloom.launch.grammar.values import BadFlagValue, Streams

# A value that torchrun takes, for every option of its that has one.
SAMPLES: Mapping[str, Sequence[str]] = {
    "nnodes": ("2", "1:4", "3:3"),
    "nproc_per_node": ("2", "auto", "gpu", "cpu"),
    "rdzv_backend": ("c10d", "static", "etcd"),
    "rdzv_endpoint": ("h:29400", "localhost:0", ""),
    "rdzv_id": ("job-7", "a b"),
    "rdzv_conf": ("timeout=60", "a=1, b=c=d", ""),
    "max_restarts": ("0", "3"),
    "monitor_interval": ("0.1", "5", "1e-2"),
    "start_method": ("spawn", "fork"),
    "event_log_handler": ("null", "console"),
    "role": ("trainer", "", "-"),
    "log_dir": ("/tmp/logs", "logs with space"),
    "redirects": ("0", "3", "0:1,1:2"),
    "tee": ("0", "1", "2:3"),
    "local_ranks_filter": ("0", "0,2"),
    "duplicate_stdout_filters": ("a,b",),
    "duplicate_stderr_filters": ("a",),
    "node_rank": ("0", "3"),
    "master_addr": ("h", "::1"),
    "master_port": ("0", "29501"),
    "local_addr": ("h",),
    "logs_specs": ("mine",),
    "numa_binding": ("node",),
    "signals_to_handle": ("SIGTERM,SIGUSR1",),
    "shutdown_timeout": ("0", "30"),
}
FLAGS = ("standalone", "module", "no_python", "run_path", "virtual_local_rank")
SHORT = {"module": "-m", "redirects": "-r", "tee": "-t"}
WITHOUT_VARIABLE = ("logs_specs", "numa_binding")


def parser() -> Any:
    return pytest.importorskip("torch.distributed.run").get_args_parser()


def real(argv: Sequence[str]) -> dict[str, Any] | None:
    """Return what torchrun makes of the words, in our terms; nothing when it refuses them."""
    from torch.distributed.elastic.multiprocessing import Std
    from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config
    from torch.distributed.run import parse_min_max_nnodes

    try:
        with contextlib.redirect_stderr(io.StringIO()):
            found = vars(parser().parse_args(list(argv)))
    except SystemExit:
        return None
    program = (found["training_script"], *found["training_script_args"])

    def streams(text: str) -> Streams:
        std = Std.from_str(text)
        if isinstance(std, dict):
            return Streams(each=tuple((rank, int(one)) for rank, one in std.items()))
        return Streams(int(std))

    return {
        "program": program,
        "module": found["module"],
        "no_python": found["no_python"],
        "per_node": found["nproc_per_node"],
        "nodes": parse_min_max_nnodes(found["nnodes"]),
        "rdzv": (found["rdzv_backend"], found["rdzv_endpoint"], found["rdzv_id"]),
        "rdzv_conf": _parse_rendezvous_config(found["rdzv_conf"]),
        "redirects": streams(found["redirects"]),
        "tee": streams(found["tee"]),
        "filter": tuple(int(r) for r in found["local_ranks_filter"].split(",") if r),
        "grace": found["shutdown_timeout"],
        **{name: found[name] for name in ("max_restarts", "role", "log_dir", "node_rank")},
        **{name: found[name] for name in ("master_addr", "master_port", "local_addr")},
        **{name: found[name] for name in ("standalone", "virtual_local_rank", "numa_binding")},
    }


def seen(command: LaunchCommand) -> dict[str, Any]:
    """Return ours in the same terms; what was not said is what torchrun would take."""
    rdzv = command.rdzv
    same = ("max_restarts", "log_dir", "standalone", "virtual_local_rank", "grace", "no_python")
    return {
        "program": (*([command.module] if command.module else []), *command.words),
        "module": command.module is not None,
        "per_node": str(command.per_node or 1),
        "nodes": tuple(command.nodes or (1, 1)),
        "rdzv": (rdzv.backend or "static", rdzv.endpoint, rdzv.id or "none"),
        "rdzv_conf": dict(rdzv.conf),
        "redirects": command.redirects,
        "tee": command.tee,
        "filter": command.local_ranks_filter,
        "role": "default" if command.role is None else command.role,
        "node_rank": command.node_rank or 0,
        "master_addr": command.master_addr or "127.0.0.1",
        **{name: getattr(command, name) for name in ("master_port", "local_addr", "numa_binding")},
        **{name: getattr(command, name) for name in same},
    }


# The table.


@pytest.mark.parametrize("grammar", [OURS, TORCHRUN], ids=["loom", "torchrun"])
def test_no_two_options_share_a_name(grammar: Grammar) -> None:
    names = [name for option in grammar.options for name in grammar.names_of(option)]

    assert len(names) == len(set(names))


def test_every_option_is_a_field_of_the_value_or_needless() -> None:
    fields = {option.field for option in OPTIONS} - {"", "help"}

    assert {f for f in fields if not f.startswith("rdzv_")} <= set(LaunchCommand.__slots__)


@pytest.mark.needs("torch")
def test_every_option_of_torchrun_is_known_with_as_many_values() -> None:
    theirs = {
        name.replace("_", "-"): action.nargs == 0
        for action in parser()._actions
        for name in action.option_strings
    }

    for grammar in (OURS, TORCHRUN):
        ours = {name: one.is_flag for one in grammar.options for name in grammar.names_of(one)}
        assert theirs.items() <= ours.items()
    assert set(ours) == set(theirs)


@pytest.mark.process
@pytest.mark.needs("torch")
def test_every_beginning_that_torchrun_takes_the_shim_takes_too() -> None:
    taken = 0

    for name in [*SAMPLES, *FLAGS]:
        value = SAMPLES[name][:1] if name in SAMPLES else ()
        for flag in (f"--{name}", f"--{name.replace('_', '-')}"):
            for end in range(3, len(flag) + 1):
                argv = [flag[:end], *value, "train.py"]
                if (theirs := real(argv)) is not None:
                    assert seen(LaunchCommand.parse([AS_TORCHRUN, *argv], {})) == theirs
                    taken += 1

    assert taken > 200


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", [*SAMPLES, *FLAGS])
def test_every_variable_of_torchrun_counts(name: str) -> None:
    value = SAMPLES[name][-1] if name in SAMPLES else "1"
    variable = f"PET_{name.upper()}"

    with mock.patch.dict(os.environ, {variable: value}):
        theirs = real(["train.py"])

    assert seen(LaunchCommand.parse([AS_TORCHRUN, "train.py"], {variable: value})) == theirs
    if value and name not in WITHOUT_VARIABLE:
        assert variable in {option.variable for option in TORCHRUN.options}


# Both doors and torchrun.


def spelled(name: str, value: str | None) -> st.SearchStrategy[list[str]]:
    """Return the ways to write one option."""
    dashed = f"--{name.replace('_', '-')}"
    names = st.sampled_from(sorted({dashed, f"--{name}", SHORT.get(name, dashed)}))
    if value is None:
        return names.map(lambda flag: [flag])
    apart = names.map(lambda flag: [flag, value])
    joined = names.map(lambda flag: [f"{flag}={value}"])
    return apart | joined


def option_words() -> st.SearchStrategy[list[list[str]]]:
    """Return several options, none of them twice, each in one of its spellings."""
    some = st.lists(st.sampled_from([*SAMPLES, *FLAGS]), unique=True, max_size=6)
    return some.flatmap(
        lambda names: st.tuples(
            *(
                st.sampled_from(SAMPLES[name]).flatmap(lambda v, n=name: spelled(n, v))
                if name in SAMPLES
                else spelled(name, None)
                for name in names
            )
        ).map(list)
    )


VARIABLES = st.dictionaries(
    st.sampled_from(["nnodes", "nproc_per_node", "max_restarts", "rdzv_id", "role", "tee"]),
    st.integers(0, 1),
    max_size=3,
).map(lambda chosen: {f"PET_{n.upper()}": SAMPLES[n][i] or "x" for n, i in chosen.items()})
PROGRAMS = st.sampled_from(["train.py", "pkg.train", "./run", "a b", "-", "-7"])
# argparse takes the first `--` away from a program's words; with us they are the program's.
ARGUMENTS = st.lists(
    st.sampled_from(["--nnodes", "7", "-n", "-m", "", "a b", "--nproc_per_node=3", "-h", "é"]),
    max_size=4,
)


@pytest.mark.process
@pytest.mark.needs("torch")
@settings(max_examples=300, deadline=None)
@given(option_words(), VARIABLES, st.booleans(), PROGRAMS, ARGUMENTS)
def test_torchruns_words_mean_to_us_what_they_mean_to_torchrun(
    options: list[list[str]],
    env: dict[str, str],
    dashes: bool,
    program: str,
    arguments: list[str],
) -> None:
    words = [word for option in options for word in option]
    argv = [*words, *(["--"] if dashes else []), program, *arguments]
    with mock.patch.dict(os.environ, env):
        theirs = real(argv)
    assert theirs is not None

    for first in ([], [AS_TORCHRUN]):
        if contradicts_itself(theirs):
            with pytest.raises(UserError, match=r"leave one out$"):
                LaunchCommand.parse([*first, *argv], env)
        else:
            assert seen(LaunchCommand.parse([*first, *argv], env)) == theirs


def contradicts_itself(view: dict[str, Any]) -> bool:
    """Tell what torchrun refuses after its grammar, or waits for in vain."""
    alone = view["standalone"] and view["nodes"][0] > 1
    return bool(alone or (view["module"] and view["no_python"]))


@pytest.mark.process
@pytest.mark.needs("torch")
@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            (
                *("-m", "-t", "3", "-mt3", "-r=1", "--nn", "--no", "--role", "-x", "--", "t.py"),
                *("--standalone", "--standalone=1", "--max-r", "a b", "-a b", "", "--nnodes=2"),
                "-1",
            )
        ),
        min_size=1,
        max_size=6,
    )
)
def test_the_shim_takes_and_refuses_what_torchrun_does(argv: list[str]) -> None:
    try:
        theirs = real(argv)
        ours = seen(LaunchCommand.parse([AS_TORCHRUN, *argv], {}))
    except (RuntimeError, ValueError, BadFlagValue):
        return  # values torchrun reads only after its grammar, and of several only the last
    except UserError:
        ours = None

    if theirs is not None and ours is not None:
        assert without_dashes(ours) == without_dashes(theirs)
    elif ours is not None:
        # To older Pythons --max-restarts and --max_restarts are two, in a program's words too.
        assert {"--max-r", "--no"} & set(argv)
    elif theirs is not None:
        assert contradicts_itself(theirs) or not theirs["program"][0]


def without_dashes(view: dict[str, Any]) -> dict[str, Any]:
    return {**view, "program": tuple(word for word in view["program"] if word != "--")}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=8) | st.sampled_from(["-n", "--", "-m", "--np=2", "x"])))
def test_whatever_is_written_is_read_or_refused_in_words(argv: list[str]) -> None:
    for first in ([], [AS_TORCHRUN]):
        with contextlib.suppress(UserError):
            found = LaunchCommand.parse([*first, *argv], {})
            assert list(found.words) == argv[len(argv) - len(found.words) :]
