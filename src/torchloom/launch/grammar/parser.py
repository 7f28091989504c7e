"""Read the words of a launch: options first, then a program whose words are its own.

Two grammars share the table of options. Ours knows every name, refuses an option said twice, and
leaves what it does not know before a `--` to the native launcher. torchrun's knows only torchrun's
names, understands their unique beginnings and `-mr3`, and takes what was said last, as argparse.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torchloom.errors import Ambiguous, UserError, nearest, shorten
from torchloom.launch.grammar.values import (
    Convert,
    count,
    nodes,
    one_of,
    pairs,
    policy,
    ranks,
    seconds,
    spares,
    streams,
    switch,
    text,
    whole,
)

LAUNCHERS = (
    *("auto", "agent"),
    *("mpiexec", "mpirun", "srun", "blaunch", "torchrun", "pbs_tmrsh", "ssh"),
)
END = "--"
_NUMBER = re.compile(r"-\d+|-\d*\.\d+", re.ASCII)  # argparse takes these for values, not flags
_GLUED = re.compile(r"[\d:,]+", re.ASCII)  # what may stick to a short flag: `-n4`, but not `-mca`


class Option(NamedTuple):
    """One thing that can be said; underscores in long names are as good as dashes."""

    field: str  # of LaunchCommand; none: torchrun's, accepted and without effect here
    names: tuple[str, ...]  # as help shows them; none: only a variable says it
    help: str = ""
    metavar: str = ""  # a flag that has one is followed by the command it speaks of
    convert: Convert | None = None  # none: a flag without a value
    also: tuple[str, ...] = ()  # other tools' words for it
    torchrun: str = ""  # torchrun's words for it, short one first
    variable: str = ""  # counts when no flag says it
    hidden: bool = False

    @property
    def is_flag(self) -> bool:
        """Tell whether no value follows."""
        return self.convert is None


def _torchrun(
    field: str, name: str, convert: Convert | None = None, short: str = "", petted: bool = True
) -> Option:
    """Return an option that only torchrun's users know: accepted, not shown."""
    variable = f"PET_{name[2:].replace('-', '_').upper()}" if petted else ""
    names = (*short.split(), name)
    metavar = "" if convert is None else "VALUE"
    words = " ".join(names)
    return Option(field, names, "", metavar, convert, (), words, variable, hidden=True)


OPTIONS: tuple[Option, ...] = (
    Option(
        "total",
        ("-n", "--np"),
        "Number of ranks: a number, gpu, cpu or auto.",
        "N",
        count,
        also=("-np", "--n", "--nproc", "--nprocs", "--world-size"),
    ),
    Option(
        "per_node",
        ("--nproc-per-node", "--ppn"),
        "Ranks per host, in the same format.",
        "N",
        count,
        also=("-ppn",),
        torchrun="--nproc-per-node",
        variable="PET_NPROC_PER_NODE",
    ),
    Option(
        "nodes",
        ("--nnodes", "--nh"),
        "Number of hosts: N or MIN:MAX.",
        "HOSTS",
        nodes,
        also=("-nh", "--nhost", "--nhosts", "--nnode"),
        torchrun="--nnodes",
        variable="PET_NNODES",
    ),
    Option(
        "hostfile",
        ("--hostfile",),
        "File that lists the hosts; default: the hosts of the allocation.",
        "FILE",
        text,
    ),
    Option(
        "launcher",
        ("--launcher",),
        "auto, agent, mpiexec, mpirun, srun, blaunch, torchrun, pbs_tmrsh or ssh.",
        "NAME",
        one_of(*LAUNCHERS),
    ),
    Option("per_rank", ("--per-rank",), "The launcher starts each rank, not one agent per host."),
    Option(
        "max_restarts",
        ("--max-restarts", "--retries"),
        "Maximum number of restarts of all ranks after a failure.",
        "K",
        whole(),
        also=("--max-failover-retries",),
        torchrun="--max-restarts",
        variable="PET_MAX_RESTARTS",
    ),
    Option(
        "spares",
        ("--spares",),
        "Number of spare hosts; default: all remaining.",
        "N",
        spares,
        also=("--spare-nodes",),
    ),
    Option(
        "idle_timeout",
        ("--timeout",),
        "End the ranks, with exit code 124, after this time without output.",
        "SEC",
        seconds,
    ),
    Option(
        "orphan_limit",
        ("--orphan-limit",),
        "How long ranks may run without their agent.",
        "SEC",
        seconds,
    ),
    Option(
        "grace",
        ("--shutdown-timeout",),
        "Seconds between SIGTERM and SIGKILL; default 10.",
        "SEC",
        whole(),
        also=("--grace",),
        torchrun="--shutdown-timeout",
        variable="PET_SHUTDOWN_TIMEOUT",
    ),
    Option(
        "policy",
        ("--policy",),
        "On a failure: live, restart, shrink or fail; nan=notify|restart|fail.",
        "WORDS",
        policy,
    ),
    Option(
        "cpu_bind",
        ("--cpu-bind",),
        "Binding of ranks to cores, in the launcher's format.",
        "HOW",
        text,
        variable="CPU_BIND",
    ),
    Option(
        "log_dir",
        ("--log-dir",),
        "Folder of the logs.",
        "DIR",
        text,
        torchrun="--log-dir",
        variable="PET_LOG_DIR",
    ),
    Option(
        "role",
        ("--role",),
        "Name of the role.",
        "NAME",
        text,
        torchrun="--role",
        variable="PET_ROLE",
    ),
    Option("no_fallback", ("--no-fallback",), "Fail instead of falling back to gloo."),
    Option(
        "no_python",
        ("--no-python",),
        "The command is not a Python script.",
        torchrun="--no-python",
        variable="PET_NO_PYTHON",
    ),
    Option("dryrun", ("--dryrun", "--dry-run"), "Show what would be started."),
    Option(
        "module",
        ("-m", "--module"),
        "Run a module, as `python -m` does.",
        "MODULE",
        torchrun="-m --module",
        variable="PET_MODULE",
    ),
    _torchrun("node_rank", "--node-rank", whole()),
    _torchrun("standalone", "--standalone"),
    _torchrun("rdzv_backend", "--rdzv-backend", text),
    _torchrun("rdzv_endpoint", "--rdzv-endpoint", text),
    _torchrun("rdzv_id", "--rdzv-id", text),
    _torchrun("rdzv_conf", "--rdzv-conf", pairs),
    _torchrun("master_addr", "--master-addr", text),
    _torchrun("master_port", "--master-port", whole(0, 65535)),
    _torchrun("local_addr", "--local-addr", text),
    _torchrun("redirects", "--redirects", streams, "-r"),
    _torchrun("tee", "--tee", streams, "-t"),
    _torchrun("local_ranks_filter", "--local-ranks-filter", ranks),
    _torchrun("virtual_local_rank", "--virtual-local-rank"),
    _torchrun(
        "numa_binding",
        "--numa-binding",
        one_of("node", "socket", "exclusive", "core-complex"),
        petted=False,
    ),
    _torchrun("", "--run-path"),
    _torchrun("", "--monitor-interval", seconds),
    _torchrun("", "--start-method", one_of("spawn", "fork", "forkserver")),
    _torchrun("", "--event-log-handler", text),
    _torchrun("", "--signals-to-handle", text),
    _torchrun("", "--duplicate-stdout-filters", text),
    _torchrun("", "--duplicate-stderr-filters", text),
    _torchrun("", "--logs-specs", text, petted=False),
    Option("", ("--auto-retry",), hidden=True),
    Option("python", (), "", "", text, variable="PYTHON_EXEC", hidden=True),
    Option(
        "prefix_template",
        *((), "", "", text),
        variable="TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
        hidden=True,
    ),
    Option("help", ("-h", "--help"), torchrun="-h --help", hidden=True),
)


class HelpAsked(UserError):
    """`-h` stands where an option is read; a door that has help shows it."""

    code = "help_asked"


class UnknownOption(UserError):
    """A word looks like an option and is none."""

    code = "unknown_option"

    def __init__(self, word: str, known: Iterable[str], command: str) -> None:
        name = word.partition("=")[0]
        hint = nearest(name, known) if len(name) > 2 else ""  # all short ones are near each other
        parts = [f"no option {shorten(word)!r}", hint, f"`{command} --help` explains"]
        super().__init__("; ".join(part for part in parts if part))


class _Found(NamedTuple):
    option: Option
    name: str
    glued: str | None = None  # the value that is part of the word
    rest: str = ""  # more short flags in the same word


@dataclass(slots=True)
class ParsedWords:
    """What a command line says, before it means anything."""

    values: dict[str, object] = field(default_factory=dict)  # by field of LaunchCommand
    names: dict[Option, str] = field(default_factory=dict)  # how each option was written
    words: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)  # for the native launcher

    def put(self, option: Option, name: str, value: object) -> None:
        """Note one option."""
        self.names[option] = name
        self.values[option.field] = value


class Grammar:
    """A set of options and the rules that separate them from other words."""

    def __init__(self, command: str, options: Iterable[Option], like_argparse: bool) -> None:
        self.command = command
        self.options = tuple(options)
        self._like_argparse = like_argparse
        self._names = {name: one for one in self.options for name in self.names_of(one)}

    def names_of(self, option: Option) -> tuple[str, ...]:
        """Return every way to write an option, with dashes."""
        words = tuple(option.torchrun.split())
        return words if self._like_argparse else (*option.names, *option.also)

    def usage(self) -> str:
        """Return every option in a line, for a door without a help of its own."""
        lines = [f"usage: {self.command} [OPTIONS] PROGRAM [ARGS]...", ""]
        for option in self.options:
            value = "" if option.is_flag else f" {option.metavar}"
            lines += [f"  {', '.join(names)}{value}" for names in [self.names_of(option)] if names]
        return "\n".join(lines)

    def read(self, argv: Sequence[str]) -> ParsedWords:
        """Take options off the front until the program's name comes."""
        said, words = ParsedWords(), list(argv)
        while words:
            found = self._find(words[0])
            if found is not None:
                self._take(found, words, said)
            elif words[0] == END:
                said.words = words[1:]
                break
            elif (said.foreign or _is_flag(words[0])) and self._is_foreign(words):
                said.foreign.append(words.pop(0))
            elif _is_flag(words[0]):
                raise UnknownOption(words[0], self._names, self.command)
            else:
                said.words = words
                break
        return said

    def read_variables(self, env: Mapping[str, str], said: ParsedWords) -> None:
        """Add what variables say of options that no flag spoke of."""
        for option in self.options:
            spoken = env.get(option.variable, "") if option.variable else ""
            if not spoken or option in said.names:
                continue
            said.put(option, option.variable, (option.convert or switch)(option.variable, spoken))

    def _is_foreign(self, words: Sequence[str]) -> bool:
        """Tell whether a command follows behind a later `--`; if not, nothing here is foreign."""
        return not self._like_argparse and END in words[:-1]

    def _take(self, found: _Found, words: list[str], said: ParsedWords) -> None:
        option, name = found.option, found.name
        words.pop(0)
        if option.field == "help":
            raise HelpAsked(f"`{self.command} --help` explains; it starts nothing")
        if option in said.names and not (option.is_flag or self._like_argparse):
            raise UserError(f"{said.names[option]} is given more than once; leave one out")
        if option.convert is not None:
            value = found.glued if found.glued is not None else self._value(found, words)
            said.put(option, name, option.convert(name, value))
            return
        if found.glued is not None:
            raise UserError(f"{name} takes no value; leave {shorten(found.glued)!r} out")
        said.put(option, name, True)
        if found.rest:
            words.insert(0, found.rest)

    def _value(self, found: _Found, words: list[str]) -> str:
        following = words[0] if words else END
        if following == END or self._find(following) or _is_flag(following):
            raise UserError(
                f"{found.name} needs a value; write {found.name} {found.option.metavar}"
            )
        return words.pop(0)

    def _find(self, word: str) -> _Found | None:
        """Return the option a word means, if it means one."""
        if not word.startswith("-") or word in ("-", END):
            return None
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")
        option = self._names.get(dashed) or (
            self._beginning(dashed) if name.startswith("--") else None
        )
        if option is not None:
            return _Found(option, name, value if equals else None)
        return None if name.startswith("--") else self._short(word)

    def _beginning(self, name: str) -> Option | None:
        """Return the one option that begins so, as argparse has it."""
        if not self._like_argparse:
            return None
        found = {one: known for known, one in self._names.items() if known.startswith(name)}
        if len(found) > 1:
            raise Ambiguous("option", name, found.values())
        return next(iter(found), None)

    def _short(self, word: str) -> _Found | None:
        """Return the option of `-r3`, or the first of `-mr3`."""
        option, rest = self._names.get(word[:2]), word[2:]
        if option is None:
            return None
        if not option.is_flag:
            fits = self._like_argparse or _GLUED.fullmatch(rest)
            return _Found(option, word[:2], rest) if fits else None
        more = f"-{rest}"
        if not self._like_argparse or more[:2] not in self._names:
            return None
        return _Found(option, word[:2], rest=more)


def _is_flag(word: str) -> bool:
    """Tell whether an unknown word must be meant as an option."""
    is_dashed = word.startswith("-") and word not in ("-", END)
    return is_dashed and not _NUMBER.fullmatch(word) and " " not in word


OURS = Grammar("loom launch", OPTIONS, like_argparse=False)
TORCHRUN = Grammar(
    "torchrun", (one for one in OPTIONS if one.torchrun or not one.names), like_argparse=True
)
