"""The table of verbs, its help, other tools' words, and answers without the CLI library."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from torchloom.cli.main import main
from torchloom.cli.verbs import ALIASES, GROUPS, VERBS
from torchloom.specs.api import AppState


def command(verb: str) -> click.Command:
    found: click.Command = import_module(f"torchloom.cli.commands.cmd_{verb}").command
    return found


def own_commands() -> list[click.Command]:
    commands = [command(verb) for verb in VERBS]
    groups = [one for one in commands if isinstance(one, click.Group)]
    return commands + [inner for group in groups for inner in group.commands.values()]


def test_help_leaves_a_line_of_80_by_24_for_the_prompt(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24 - 1


def test_help_has_a_row_for_the_first_verbs_and_the_names_of_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["--help"])

    rows, _, more = capsys.readouterr().out.partition("\nMore")
    firsts = [name for row in rows.splitlines()[3:] for name in re.split(", ", row[9:21].strip())]
    assert sorted(firsts) == sorted(name for name, verb in VERBS.items() if verb.first)
    others = re.findall(r"[a-z]+", more.partition("\n\n")[0])
    of_a_checkout = {"bench"}
    known = {name for name, verb in VERBS.items() if not verb.first}
    assert sorted(others) == sorted(known - of_a_checkout)


@pytest.mark.parametrize("words", [["help", "--all"], ["--help", "--all"]], ids=" ".join)
def test_the_whole_help_has_a_row_for_every_verb_below_its_group(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0

    lines = capsys.readouterr().out.splitlines()
    rows = lines[3 : lines.index("", 3)]
    assert [row[9:21].strip() for row in rows] == [
        one for names in GROUPS.values() for one in names
    ]
    assert [row[:9].strip() for row in rows if row[0] != " "] == list(GROUPS)
    assert sorted(row[9:21].strip() for row in rows) == sorted(VERBS)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("words", [[], ["-h"], ["help"], ["--debug", "--help"]])
def test_help_is_also_what_these_ask_for(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--help"])
    expected = capsys.readouterr().out

    assert main(words) == 0

    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_fits_80_columns(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "--help"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"Usage: loom {verb} ")
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "bench"])
def test_the_short_way_to_a_verbs_help_works(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([verb, "--help"])
    expected = capsys.readouterr().out

    assert main([verb, "-h"]) == 0
    assert main(["help", verb]) == 0

    assert capsys.readouterr().out == expected * 2


@pytest.mark.parametrize("verb", VERBS)
def test_completion_knows_exactly_the_flags_of_a_verb(verb: str) -> None:
    options = [p for p in command(verb).params if isinstance(p, click.Option) and not p.hidden]

    real = {_flag(option) for option in options}

    assert set(VERBS[verb].flags) == real
    assert len(VERBS[verb].flags) == len(real)


def _flag(option: click.Option) -> str:
    long = [flag for flag in option.opts if flag.startswith("--")]
    return (long or option.opts)[0] + ("" if option.is_flag else "=")


def test_a_flag_means_the_same_wherever_it_appears() -> None:
    meanings: dict[str, set[str]] = {}
    for one in own_commands():
        for option in one.params:
            for flag in option.opts if isinstance(option, click.Option) else ():
                if re.fullmatch(r"-\w", flag):
                    meanings.setdefault(flag, set()).add(max(option.opts, key=len).strip("-"))

    assert {flag: words for flag, words in meanings.items() if len(words) > 1} == {
        "-s": {"scheduler", "schedulers"},  # TorchX's `configure -s a,b` takes several
        "-n": {"n", "np"},  # processes, under one more name where ezpz's users look for it
        "-m": {"m", "module"},
        "-t": {"follow", "tee"},  # TorchX's for logs, torchrun's for a launch
    }


@pytest.mark.parametrize("verb", VERBS)
def test_every_summary_is_one_short_line(verb: str) -> None:
    assert len(VERBS[verb].summary) <= 59
    assert VERBS[verb].summary[0].islower()


def test_every_alias_leads_to_a_verb_that_takes_its_flags() -> None:
    for alias, (verb, *words) in ALIASES.items():
        assert alias not in VERBS
        one = command(verb)
        context = one.make_context(verb, [*words], resilient_parsing=True)
        assert context.args == [] or isinstance(one, click.Group), alias


@pytest.mark.parametrize(
    "words",
    [
        ["run", "-s", "local_cwd", "-cfg", "grace=3,prepend_cwd=True", "--dryrun", "utils.echo"],
        ["run", "--scheduler", "local_cwd", "--scheduler_args", "grace=3", "--dryrun", "utils.sh"],
        ["run", "--wait", "--log", "--tee_logs", "--dryrun", "utils.echo", "--msg", "hi"],
        ["run", "--workspace", ".", "--parent_run_id", "p", "--dryrun", "utils.echo"],
        ["run", "--dry-run", "--", "utils.echo"],
        ["status", "local://torchx/train-a", "--roles", "trainer", "--json"],
        ["status", "local_cwd://torchx/train-a"],
        ["describe", "local://torchx/train-a"],
        ["log", "local://torchx/train-a"],
        ["log", "-t", "--regex", "x", "--streams", "stdout", "local:///train-a/trainer/0"],
        ["log", "--tail", "local://torchx/train-a/trainer/0,1"],
        ["cancel", "local://torchx/train-a"],
        ["delete", "local://torchx/train-a"],
        ["list", "-s", "local_cwd"],
        ["list", "-s", "local", "-cfg", "grace=3"],
        ["configure", "-s", "local,local_cwd", "--print", "-a"],
        ["configure", "--schedulers", "local_cwd", "--print", "--all"],
        ["builtins"],
        ["builtins", "--print", "dist.ddp"],
        ["runopts"],
        ["runopts", "local_cwd"],
        ["--log_level", "INFO", "list"],
        ["--log_level=INFO", "list"],
    ],
    ids=" ".join,
)
def test_a_torchx_command_line_works_as_it_is(
    words: list[str], ended: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ended("train-a", ranks=2, logs=["a line\n", "another\n"])

    assert main(words) == 0

    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out or words[0] == "log"


@pytest.mark.parametrize(
    ("alias", "words"),
    [
        ("jobs", ["ls"]),
        ("ps", ["ls"]),
        ("runs", ["ls"]),
        ("schedulers", ["engines"]),
        ("job", ["show"]),
    ],
)
def test_other_tools_words_do_what_ours_do(
    alias: str, words: list[str], ended: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ended("train-a", at=AppState.CANCELLED)
    rest = ["train-a"] if words == ["show"] else []
    main([*words, *rest])
    expected = capsys.readouterr().out

    assert main([alias, *rest]) == 0

    assert re.sub(r"\d+s", "", capsys.readouterr().out) == re.sub(r"\d+s", "", expected)


def test_explain_and_validate_are_ways_to_plan(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text("import json\n")

    assert main(["explain", "train.py"]) == 0
    assert "engine: local\n" in capsys.readouterr().out
    assert main(["validate", "train.py"]) == 0
    assert "check: no problems" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["help", "--all"],
        [],
        ["--version"],
        ["completion", "bash"],
        ["__complete", "sh"],
        ["__complete", "show", ""],
        ["__complete", "run", "--"],
    ],
    ids=" ".join,
)
def test_a_quick_answer_needs_no_cli_library(words: list[str]) -> None:
    code = (
        "import sys; from torchloom.cli.main import main; code = main(sys.argv[1:]);"
        "heavy = {'click', 'yaml', 'json', 'inspect', 'argparse', 'torchloom.specs'};"
        "print(sorted(heavy & set(sys.modules)), code, file=sys.stderr)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )

    assert done.stderr == "[] 0\n"
    assert done.stdout


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    from torchloom import __version__

    assert main(["--version"]) == 0

    assert capsys.readouterr().out == f"torchloom {__version__}\n"
