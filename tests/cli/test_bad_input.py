"""Bad input: one clear line, the right code, no traceback, nothing started, nothing written."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.main import main

MISUSE, FAILURE = 2, 1
LONG = "x" * 10_000
HOSTILE = [
    "a;b",
    "$(touch hacked)",
    "`touch hacked`",
    "a\nloom: all is well",
    "a\0b",
    "../../x",
    "/etc/passwd",
    "\x1b[2J\x1b[31mred",
    "-",
    " ",
    "a b",
    "é\u202e",
    "\udcff",
    "|",
    "%s%n",
    "{0}",
    LONG,
]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], state: Path) -> Callable[..., str]:
    """Run a command that must be refused; return the one line it says."""

    def run(*words: str, code: int = MISUSE) -> str:
        capsys.readouterr()
        left = main(list(words))
        captured = capsys.readouterr()
        assert left == code, captured.err
        assert captured.out == ""
        assert captured.err.startswith("loom: ")
        assert captured.err.endswith("\n")
        assert captured.err.count("\n") == 1
        assert captured.err[:-1].isprintable()
        assert len(captured.err) < 1200
        assert "Traceback" not in captured.err
        assert "bug in torchloom" not in captured.err
        assert not Path("hacked").exists()
        runs = state / "runs"
        assert [path for path in runs.iterdir() if path.is_dir()] == [] if runs.exists() else True
        return captured.err[len("loom: ") : -1]

    return run


Refused = Callable[..., str]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lss"], "no verb 'lss'; did you mean 'ls'?; `loom --help` lists them"),
        (["statsu"], "no verb 'statsu'; did you mean 'status'?; `loom --help` lists them"),
        (["help", "rnu"], "no verb 'rnu'; did you mean 'run'?; `loom --help` lists them"),
        (["-x"], "no verb '-x'; `loom --help` lists them"),
        (["--log_level", "LOUD", "ls"], "no log level 'LOUD'; write one of"),
        (["--log_level"], "no log level ''; write one of"),
        (["--log_level", "INFO"], "no verb given; `loom --help` lists them"),
        (
            ["run", "--detatch", "x.py"],
            "no option '--detatch'; did you mean '--detach'?; `loom run --help` explains",
        ),
        (
            ["run", "--nproc_per_node", "4", "train.py"],
            "no option '--nproc_per_node'; write `-n N` for N processes; `loom launch` takes "
            "torchrun's options; `loom run --help` explains",
        ),
        (
            ["logs", "-n", "5"],
            "no option '-n'; write `--last N` for the last N lines of each rank; "
            "`loom logs --help` explains",
        ),
        (
            ["logs", "@", "--tail", "5"],
            "--tail is the same as -f; write `--last 5` for the last lines of each rank",
        ),
        (
            ["logs", "--tail=5"],
            "--tail is the same as -f; write `--last 5` for the last lines of each rank",
        ),
        (
            ["ls", "-n", "5"],
            "no option '-n'; write `--limit N` for the newest N jobs; `loom ls --help` explains",
        ),
        (["queue"], "no verb 'queue'; `loom ls --state queued` lists the waiting jobs"),
        (["ls", "--jsno"], "no option '--jsno'; did you mean '--json'?; `loom ls --help` explains"),
        (["config", "shwo"], "no config command 'shwo'; did you mean 'show'?"),
        (["completion", "tcsh"], "Invalid value for '{bash|zsh|fish}': 'tcsh' is not one of"),
        (["completion"], "Missing argument '{bash|zsh|fish}'"),
        (["run"], "nothing to run: name a script, a component or a spec file"),
        (["run", "dist.dpp"], "no component 'dist.dpp'; did you mean 'dist.ddp'?"),
        (["run", "trian.py"], "no file 'trian.py'; did you mean 'train.py'?"),
        (["run", "train"], "no command or component 'train'; did you mean 'train.py'?"),
        (["run", "-s", "locla", "train.py"], "no scheduler 'locla'; did you mean 'local'?"),
        (["engines", "slrum"], "no scheduler 'slrum'; did you mean 'slurm'?; known: local"),
        (["components", "utils.ecoh"], "no component 'utils.ecoh'; did you mean 'utils.echo'?"),
        (["components", "--print", "nosuch"], "no component 'nosuch'"),
        (["show", "nosuch"], "no job 'nosuch'; `loom ls` lists the jobs"),
        (["logs", "local://x"], "'local://x' is not of the form <scheduler_backend>://"),
        (["stop", "nomad://torchx/1"], "no scheduler 'nomad'; known: local, local_cwd, "),
        (["stop"], "no job is active; name one, or @ for the newest"),
        (["rm"], "name the jobs to remove, or give --ended for all that have ended"),
        (["run", "-n", "two", "train.py"], "Invalid value for '-n': 'two' is not a valid number"),
        (["run", "-n", "0", "train.py"], "Invalid value for '-n': 0 is not in the range x>=1"),
        (["run", "-n", "-1", "train.py"], "Invalid value for '-n': -1 is not in the range x>=1"),
        (["run", "-n"], "Option '-n' requires an argument"),
        (["run", "-n", "2", "-n", "3", "train.py"], "-n is given more than once"),
        (["ls", "--limit", "x"], "Invalid value for '--limit': 'x' is not a valid number"),
        (["ls", "--state", "tired"], "Invalid value for '--state': 'tired' is not one of"),
        (["ls", "--limit", "1", "--limit", "2"], "--limit is given more than once"),
        (["ls", "extra"], "Got unexpected extra argument (extra)"),
        (["logs", "@", "--last", "0"], "Invalid value for '--last': 0 is not in the range x>=1"),
        (["logs", "@", "--since", "soon"], "'soon' is not a time; write 30s, 10m, 2h, 1d or"),
        (["logs", "@", "--regex", "("], "--regex '(': missing ), unterminated subpattern"),
        (["run", "--max-retries", "-1", "train.py"], "Invalid value for '--max-retries'"),
        (["run", "-cfg", "grace=soon", "train.py"], "option 'grace' must be int"),
        (["run", "-cfg", "grace=-5", "train.py"], "grace: expected seconds from 0, got -5"),
        (["run", "-cfg", "nosuch=1", "train.py"], "no option 'nosuch'; known:"),
        (["run", "-cfg", "grace", "train.py"], "grace"),
        (["run", "-e", "NOSUCHVARIABLE", "train.py"], "--env 'NOSUCHVARIABLE': write K=V"),
        (["run", "-e", "=x", "train.py"], "--env '=x': write K=V, or the name of a variable"),
        (["run", "--workspace", "nosuch", "train.py"], "workspace 'nosuch' does not exist"),
        (["run", "dist.ddp"], "give exactly one of --script and -m"),
        (["run", "dist.ddp", "-j", "two", "--script", "train.py"], "-j 'two' is not"),
        (["run", "utils.echo", "--num_replicas", "x"], "--num_replicas: expected int, got 'x'"),
        (["run", "utils.echo", "--num_replicas", "0"], "roles[0].num_replicas: must be at least 1"),
        (["run", "utils.echo", "--nosuch", "1"], "utils.echo has no argument '--nosuch'"),
        (["run", "utils.copy"], "utils.copy needs --src"),
        (["run", "-n", "2", "utils.echo"], "-n is for scripts, modules and commands"),
        (["plan", "--all", "--check", "train.py"], "--check cannot be combined with --all"),
        (["configure", "-s", "local,slrum"], "no scheduler 'slrum'"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
def test_misuse_is_one_line_with_a_remedy(words: list[str], message: str, refused: Refused) -> None:
    Path("train.py").write_text("")

    assert message in refused(*words)


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name)[:20])
@pytest.mark.parametrize(
    "words",
    [
        ["run", "--name", "{}", "train.py"],
        ["show", "{}"],
        ["logs", "{}"],
        ["stop", "{}"],
        ["rm", "{}"],
        ["show", "local://torchx/{}"],
        ["components", "{}"],
        ["components", "--print", "{}"],
        ["run", "{}"],
        ["run", "{}.py"],
        ["run", "{}.json"],
        ["run", "{}:fn"],
        ["run", "-s", "{}", "train.py"],
        ["run", "-cfg", "{}=1", "train.py"],
        ["run", "-n", "{}", "train.py"],
        ["run", "--workspace", "{}", "train.py"],
        ["run", "--env", "{}", "train.py"],
        ["logs", "@", "--since", "{}"],
        ["logs", "@", "--ranks", "{}"],
        ["ls", "--state", "{}"],
        ["ls", "--{}"],
        ["{}"],
        ["engines", "{}"],
        ["config", "{}"],
    ],
    ids=" ".join,
)
def test_a_hostile_value_is_refused_like_any_other(
    words: list[str], name: str, refused: Refused
) -> None:
    Path("train.py").write_text("")
    if "--workspace" in words and name in ("/etc/passwd", "|"):
        name = "/no/such/place"  # a file may be a workspace, and so may nothing at all
    if "config" in words and name == "-":
        name = "- "  # a lone dash begins an option
    if "--name" in words and name == "a b":
        name = "a/b"  # blanks become dashes

    refused(*(word.replace("{}", name) for word in words))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "app.json: not JSON: Expecting value"),
        ("{", "app.json"),
        ("[]", "expected"),
        ("null", "expected"),
        ('{"name": "x"}', "app.json: nothing to run: give one of model, script, module"),
        ('{"name": "x", "roles": []}', "an app needs at least one role"),
        ('{"name": 5, "roles": []}', "app.json: name: expected str, got 5"),
        ('{"name": "x", "roles": [{"name": "a", "image": ""}]}', "roles[0].entrypoint"),
        (
            '{"name": "x", "roles": [{"name": "a", "image": "", "entrypoint": "e",'
            ' "num_replicas": 0}]}',
            "roles[0].num_replicas: must be at least 1, is 0",
        ),
        (
            '{"name": "x", "roles": [{"name": "a", "image": "", "entrypoint": "e",'
            ' "resource": {"cpu": "two"}}]}',
            "roles[0].resource.cpu: expected int, got 'two'",
        ),
        (
            '{"name": "x", "roles": [{"name": "a", "image": "", "entrypoint": "e", "arg": []}]}',
            "did you mean 'args'?",
        ),
        (
            '{"name": "../x", "roles": [{"name": "a", "image": "", "entrypoint": "e"}]}',
            "name: '../x' is not a name",
        ),
        (
            '{"name": "x", "roles": [{"name": "a/b", "image": "", "entrypoint": "e"}]}',
            "roles[0].name: 'a/b' is not a name",
        ),
        (
            '{"name": "x", "roles": [{"name": "a", "image": "", "entrypoint": "e",'
            ' "args": ["a\\u0000b"]}]}',
            "NUL byte",
        ),
        ("[" * 100_000, "app.json"),
    ],
)
def test_a_bad_spec_file_names_the_field(text: str, message: str, refused: Refused) -> None:
    Path("app.json").write_text(text)

    assert message in refused("run", "app.json")


@pytest.mark.parametrize("ending", ["json", "yaml", "yml", "py:job"])
@pytest.mark.parametrize("kind", ["missing", "folder", "binary"])
def test_an_unreadable_file_is_said(kind: str, ending: str, refused: Refused) -> None:
    path = Path(f"app.{ending}".partition(":")[0])
    if kind == "folder":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(bytes(range(256)) * 10)

    assert path.name in refused("run", f"app.{ending}")


@pytest.mark.parametrize("target", ["app.json", "mine.py:job"])
def test_a_forbidden_file_is_said(target: str, refused: Refused) -> None:
    path = Path(target.partition(":")[0])
    path.symlink_to("/proc/self/mem" if os.geteuid() == 0 else "/proc/1/mem")  # nobody reads it

    message = refused("run", target)

    assert "Permission denied" in message or "Input/output error" in message


def test_a_spec_file_takes_no_words(refused: Refused) -> None:
    Path("app.yaml").write_text("name: x\nroles: []\n")

    message = refused("run", "app.yaml", "--lr", "1")

    assert message == "app.yaml is a spec file and takes no arguments: '--lr'"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def job() -> specs.AppDef:\n    raise ValueError('no\\nluck')\n", "ValueError: no"),
        ("def job() -> specs.AppDef:\n    raise SystemExit(7)\n", "SystemExit"),
        ("def job() -> specs.AppDef:\n    raise KeyboardInterrupt\n", ""),
        ("def job() -> specs.AppDef:\n    return None\n", "None"),
        ("def job() -> specs.AppDef:\n    return 'app'\n", "str"),
        ("def job() -> specs.AppDef:\n    return specs.AppDef('x', 5)\n", "roles"),
        ("def job(\n", "mine.py"),
        ("def job(x) -> specs.AppDef:\n    return specs.AppDef('x')\n", "x"),
        ("def other() -> specs.AppDef:\n    return specs.AppDef('x')\n", "other"),
        ("1 / 0\ndef job() -> specs.AppDef:\n    return specs.AppDef('x')\n", "ZeroDivisionError"),
        ("import nosuchmodule\ndef job() -> specs.AppDef:\n    return 1\n", "nosuchmodule"),
        ("job = 5\n", "job"),
        ("def job(need: str) -> specs.AppDef:\n    return specs.AppDef('x')\n", "needs --need"),
    ],
)
def test_a_bad_component_is_said_in_one_line(
    body: str, message: str, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    Path("mine.py").write_text(f"import torchx.specs as specs\n{body}")
    if "KeyboardInterrupt" in body:
        assert main(["run", "mine.py:job"]) == 130
        return

    assert message in refused("run", "mine.py:job")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[local\n", ".loomconfig"),
        ("no section\n", ".loomconfig"),
        ("[local]\ngrace = soon\n", "[local] grace"),
        ("[local]\ngrace = 1\n[local]\ngrace = 2\n", "local"),
        ("\0\0", ".loomconfig"),
    ],
)
@pytest.mark.parametrize("words", [["run", "train.py"], ["plan", "--json", "train.py"]])
def test_a_broken_config_file_is_named(
    text: str, message: str, words: list[str], refused: Refused
) -> None:
    Path("train.py").write_text("")
    Path(".loomconfig").write_text(text)

    assert message in refused(*words)


def test_a_config_file_that_is_not_there_is_named(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOMCONFIG", "nosuch.ini")

    assert "nosuch.ini" in refused("config", "show")


def test_a_config_file_is_not_overwritten(refused: Refused) -> None:
    Path(".loomconfig").write_text("mine")

    assert refused("config", "init") == ".loomconfig exists; remove it, or use --print"
    assert Path(".loomconfig").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--stdin: not JSON"),
        ("[1]", "--stdin: expected an object, got list"),
        ("{}", "--stdin: component_name is missing"),
        ('{"component_name": 5}', "--stdin: component_name: expected str, got int"),
        (
            '{"component_name": "utils.echo", "schedular": "local"}',
            "--stdin: unknown field 'schedular'; did you mean 'scheduler'?",
        ),
        (
            '{"component_name": "utils.echo", "component_args_str": ["a", 5]}',
            "--stdin: component_args_str[1]: expected str, got int",
        ),
        (
            '{"component_name": "utils.echo", "component_args": {"num_replicas": "x"}}',
            "expected int, got 'x'",
        ),
        (
            '{"component_name": "utils.echo", "scheduler_args": {"grace": "5"}}',
            "option 'grace' must be int",
        ),
        ('{"component_name": "utils.echo", "scheduler": "nomad"}', "no scheduler 'nomad'"),
        ("[" * 100_000, "--stdin: not JSON"),
    ],
)
def test_a_bad_request_from_stdin_names_the_field(
    text: str, message: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(text))

    assert message in refused("run", "--stdin")


@pytest.mark.parametrize(
    "words", [["train.py"], ["-n", "2"], ["--max-retries", "0"], ["-m", "x"], ["--name", "y"]]
)
def test_words_beside_stdin_are_refused(words: list[str], refused: Refused) -> None:
    message = refused("run", "--stdin", *words)

    assert message == "--stdin reads the whole request; leave other options and arguments out"


def test_a_state_folder_that_cannot_be_made_is_a_failure(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("train.py").write_text("")
    Path("file").write_text("")
    monkeypatch.setenv("LOOM_HOME", str(Path("file").absolute()))

    assert "set LOOM_HOME to another folder" in refused("run", "-d", "train.py", code=FAILURE)


def test_removing_everything_needs_a_yes_where_nobody_can_be_asked(
    ended: Any, capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    ended("a")

    assert main(["rm", "--ended"]) == MISUSE

    message = "loom: this removes 1 job; without a terminal, confirm with --yes\n"
    assert capsys.readouterr().err == message
    assert (state / "runs/a").exists()


def test_debug_shows_the_traceback_before_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--debug", "show", "nosuch"]) == MISUSE

    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "loom: no job 'nosuch'; `loom ls` lists the jobs"


def test_debug_shows_where_a_component_failed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(
        "import torchx.specs as specs\ndef job() -> specs.AppDef:\n    return undefined_name\n"
    )

    assert main(["--debug", "run", "mine.py:job"]) == MISUSE

    assert "mine.py" in capsys.readouterr().err.partition("NameError")[0]


def test_what_plan_finds_in_the_way_is_said_and_is_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("train.py").write_text("import nosuchmodule, os\nfrom json import dumps\n")
    Path("broken.py").write_text("def broken(\n")

    assert main(["plan", "--check", "train.py"]) == FAILURE
    assert "problem: role train: train.py imports 'nosuchmodule', which" in capsys.readouterr().out
    assert main(["plan", "--check", "broken.py"]) == FAILURE
    assert "problem: role broken: broken.py cannot be read: Syn" in capsys.readouterr().out
    spec = {"name": "x", "roles": [{"name": "a", "image": "", "entrypoint": "nosuchprogram"}]}
    Path("app.json").write_text(json.dumps(spec))
    assert main(["plan", "--check", "app.json"]) == FAILURE
    assert "problem: role a: no command 'nosuchprogram'" in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["run", "-n", "two", "train.py"], MISUSE),
        (["run", "--name", "../x", "train.py"], MISUSE),
        (["run", "-cfg", "grace=soon", "train.py"], MISUSE),
        (["run", "mine.py:job"], MISUSE),
        (["run", "--workspace", "nosuch", "train.py"], MISUSE),
        (["run", "-d", "-cfg", "log_dir=/proc/nosuch", "train.py"], 0),
        (["show", "a\nb"], MISUSE),
    ],
)
def test_no_process_and_no_folder_is_left(words: list[str], code: int, loom: Any) -> None:
    Path("train.py").write_text("")
    Path("mine.py").write_text(
        "import torchx.specs\ndef job() -> torchx.specs.AppDef:\n    1 / 0\n"
    )

    done = loom(*words)

    assert done.returncode == code
    if code:
        assert done.stderr.startswith(b"loom: ")
        assert done.stderr.count(b"\n") == 1
        assert loom.ids() == []
        assert loom.processes() == {}


@pytest.mark.process
def test_a_command_that_cannot_start_is_a_failed_job_with_a_reason(loom: Any) -> None:
    spec = {"name": "x", "roles": [{"name": "a", "image": "", "entrypoint": "nosuchprogram"}]}
    Path("app.json").write_text(json.dumps(spec))

    done = loom("run", "app.json")

    assert done.returncode == FAILURE
    assert b"FAILED (cannot_start: nosuchprogram: No such file or directory)" in done.stderr
    assert b"Traceback" not in done.stderr
