import io
import logging
from pathlib import Path
from typing import Any

import pytest

from torchloom.runner import config
from torchloom.runner.config import ConfigFileError
from torchloom.specs.api import UnknownSchedulerException, runopts

from ..schedulers.test_registry import Install
from ..schedulers.test_registry import install as install

QUEUES = """
from torchloom.schedulers.local_scheduler import LocalScheduler
from torchloom.specs.api import runopts

class Queues(LocalScheduler):
    def _run_opts(self):
        opts = runopts()
        opts.add("queue", type_=str, required=True, help="where it waits")
        opts.add("tags", type_=list[str], default=["a", "b"], help="words")
        opts.add("labels", type_=dict[str, str], default={"k": "v"}, help="pairs")
        opts.add("priority", type_=int, default=None, help="how soon")
        opts.add("job_dir", type_=str, default=None, help="folder")
        return opts

def create_scheduler(session_name, **kwargs):
    return Queues("queues", session_name)
"""


@pytest.fixture
def queues(install: Install, tmp_path: Path) -> None:
    """An engine with options of every type."""
    install("queues", target="queues_plugin:create_scheduler")
    (tmp_path / "queues_plugin.py").write_text(QUEUES)


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def project(home: Path, text: str, name: str = ".loomconfig") -> str:
    return write(home.parent / "project" / name, text)


def users(home: Path, text: str, name: str = ".loomconfig") -> str:
    return write(home.parent / "user" / name, text)


def applied(scheduler: str = "local", **cfg: Any) -> dict[str, Any]:
    config.apply(scheduler, cfg)
    return cfg


# Which files.


def test_without_files_nothing_is_found(home: Path) -> None:
    assert (config.find_configs(), config.origins(), applied()) == ([], [], {})


def test_the_projects_files_come_before_the_users_and_ours_before_torchxs(home: Path) -> None:
    found = [
        project(home, "", ".loomconfig"),
        project(home, "", ".torchxconfig"),
        users(home, "", ".loomconfig"),
        users(home, "", ".torchxconfig"),
    ]

    assert config.find_configs() == found


def test_folders_may_be_given_and_count_in_their_order(home: Path) -> None:
    mine, theirs = users(home, ""), project(home, "")

    assert config.find_configs([str(Path(mine).parent), str(Path(theirs).parent)]) == [mine, theirs]


def test_a_home_that_is_the_project_is_read_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = users(home, "")
    monkeypatch.chdir(Path(found).parent)

    assert config.find_configs() == [found]


@pytest.mark.parametrize("variable", ["LOOMCONFIG", "TORCHXCONFIG"])
def test_a_file_named_by_a_variable_is_the_only_one(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    project(home, "")
    only = write(tmp_path / "only.ini", "")

    monkeypatch.setenv(variable, only)

    assert config.find_configs() == [only]


def test_our_variable_comes_before_torchxs(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHXCONFIG", write(tmp_path / "theirs.ini", ""))
    monkeypatch.setenv("LOOMCONFIG", write(tmp_path / "ours.ini", ""))

    assert config.find_configs() == [str(tmp_path / "ours.ini")]


def test_an_empty_variable_means_no_file_at_all(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(home, "[local]\ngrace = 1\n")

    monkeypatch.setenv("LOOMCONFIG", "")

    assert (config.find_configs(), applied()) == ([], {})


def test_a_file_that_is_named_has_to_exist(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHXCONFIG", "/no/where.ini")

    with pytest.raises(ConfigFileError) as raised:
        config.find_configs()

    assert str(raised.value) == (
        "LOOMCONFIG (or TORCHXCONFIG) names '/no/where.ini', which is not a file; fix or unset it"
    )


def test_the_current_folder_is_the_one_at_the_time_of_asking(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(home, "[local]\ngrace = 1\n")
    monkeypatch.chdir(home)
    before = applied()

    monkeypatch.chdir(home.parent / "project")

    assert (before, applied()) == ({}, {"grace": 1})


# Run options.


def test_the_first_file_that_has_a_key_decides_it(home: Path) -> None:
    project(home, "[local]\ngrace = 1\n", ".loomconfig")
    project(home, "[local]\ngrace = 2\nlog_dir = /two\n", ".torchxconfig")
    users(home, "[local]\ngrace = 3\nlog_dir = /three\nprepend_cwd = yes\n")

    assert applied() == {"grace": 1, "log_dir": "/two", "prepend_cwd": True}


def test_what_the_caller_says_stays(home: Path) -> None:
    project(home, "[local]\ngrace = 1\nlog_dir = /x\n")

    assert applied(grace=7, log_dir=None) == {"grace": 7, "log_dir": None}


def test_the_section_of_another_engine_is_not_read(home: Path) -> None:
    project(home, "[local_cwd]\ngrace = 1\n[Local]\ngrace = 2\n")

    assert applied("local") == {}


@pytest.mark.usefixtures("queues")
def test_texts_become_what_the_option_is(home: Path) -> None:
    project(
        home,
        "[queues]\nqueue = a b\ntags = x;y,z\nlabels = a:1;b:2\npriority = 5\njobDir = None\n",
    )

    assert applied("queues") == {
        "queue": "a b",
        "tags": ["x", "y", "z"],
        "labels": {"a": "1", "b": "2"},
        "priority": 5,
        "job_dir": None,
    }


@pytest.mark.usefixtures("queues")
def test_an_option_given_in_another_spelling_is_given(home: Path) -> None:
    project(home, "[queues]\njob_dir = /file\n")

    assert applied("queues", jobDir="/mine") == {"jobDir": "/mine"}


def test_keys_and_values_keep_their_case_and_their_percent(home: Path) -> None:
    project(home, "[component:Mine]\nmemMB = A%d%%B\nmemmb = 7\n")

    assert config.load_sections("component") == {"Mine": {"memMB": "A%d%%B", "memmb": "7"}}


def test_a_value_that_cannot_be_read_is_named_by_file_section_and_key(home: Path) -> None:
    path = project(home, "[local]\ngrace = soon\n")

    with pytest.raises(ConfigFileError) as raised:
        applied()

    assert str(raised.value).startswith(f"{path}: [local] grace: ")
    assert "'soon'" in str(raised.value)


def test_an_unknown_key_is_a_warning_that_names_it(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = project(home, "[local]\ngracee = 1\n")

    with caplog.at_level(logging.WARNING):
        assert applied() == {}

    assert caplog.messages == [f"{path}: [local] gracee: local has no such option"]


def test_a_section_of_an_unknown_engine_cannot_be_read(home: Path) -> None:
    project(home, "[nope]\na = 1\n")

    with pytest.raises(UnknownSchedulerException, match="no scheduler 'nope'"):
        applied("nope")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("grace = 1\n", "line: 1"),
        ("[local]\ngrace = 1\ngrace = 2\n", "'grace' in section 'local' already exists"),
        ("[local]\n[local]\n", "section 'local' already exists"),
        ("[local]\nnonsense\n", "[line 2]: 'nonsense"),
    ],
)
def test_a_file_that_is_no_config_is_named_with_what_is_wrong(
    home: Path, text: str, reason: str
) -> None:
    path = project(home, text)

    with pytest.raises(ConfigFileError) as raised:
        applied()

    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert reason in message
    assert "\n" not in message


def test_a_file_that_is_no_text_is_named(home: Path) -> None:
    path = Path(project(home, ""))
    path.write_bytes(b"\xff\xfe[")

    with pytest.raises(ConfigFileError, match=r"loomconfig: .*utf-8"):
        applied()


def test_an_open_file_can_be_loaded(home: Path) -> None:
    cfg: dict[str, Any] = {"log_dir": "/mine"}

    config.load("local", io.StringIO("[local]\ngrace = 4\nlog_dir = /theirs\n"), cfg)

    assert cfg == {"log_dir": "/mine", "grace": 4}
    with pytest.raises(ConfigFileError):
        config.load("local", io.StringIO("nonsense"), cfg)


# Other sections.


def test_sections_with_a_prefix_are_found_by_name_all_files_taken_together(home: Path) -> None:
    project(home, "[component:dist.ddp]\nj = 2x4\n[component:my:own]\na = 1\n[component:]\nb = 1\n")
    users(home, "[component:dist.ddp]\nj = 1x1\nimage = x\n[cli:run]\ncomponent = dist.ddp\n")

    assert config.load_sections("component") == {
        "dist.ddp": {"j": "2x4", "image": "x"},
        "my:own": {"a": "1"},
    }
    assert config.get_configs("cli", "run") == {"component": "dist.ddp"}
    assert config.get_configs("cli", "list") == {}


def test_one_value_is_found_or_nothing(home: Path) -> None:
    project(home, "[cli:run]\nscheduler = local\n")

    assert config.get_config("cli", "run", "scheduler") == "local"
    assert config.get_config("cli", "run", "workspace") is None


def test_the_origin_of_every_value_that_counts_is_known(home: Path) -> None:
    near = project(home, "[local]\ngrace = 1\n")
    far = users(home, "[local]\ngrace = 2\nlog_dir = /x\n[cli:run]\nscheduler = local\n")

    assert config.origins() == [
        ("local", "grace", "1", near),
        ("local", "log_dir", "/x", far),
        ("cli:run", "scheduler", "local", far),
    ]


# Writing one.


@pytest.mark.usefixtures("queues")
def test_a_dumped_config_holds_all_options_and_is_read_back(home: Path) -> None:
    text = io.StringIO()

    config.dump(text, ["queues"])

    assert text.getvalue() == (
        "[queues]\n"
        "queue = #FIXME:(str) where it waits\n"
        "tags = a;b\n"
        "labels = k:v\n"
        "priority = None\n"
        "job_dir = None\n\n"
    )
    project(home, text.getvalue().replace("#FIXME:(str) where it waits", "q"))
    assert applied("queues") == {
        "queue": "q",
        "tags": ["a", "b"],
        "labels": {"k": "v"},
        "priority": None,
        "job_dir": None,
    }


@pytest.mark.usefixtures("queues")
def test_only_what_is_required_can_be_dumped() -> None:
    text = io.StringIO()

    config.dump(text, ["queues"], required_only=True)

    assert text.getvalue() == "[queues]\nqueue = #FIXME:(str) where it waits\n\n"


@pytest.mark.usefixtures("queues")
def test_without_names_every_engine_is_dumped() -> None:
    text = io.StringIO()

    config.dump(text, required_only=True)

    assert sorted(line for line in text.getvalue().splitlines() if line[:1] == "[") == [
        "[local]",
        "[local_cwd]",
        "[lsf]",
        "[pbs]",
        "[queues]",
        "[slurm]",
    ]


def test_an_unknown_engine_cannot_be_dumped() -> None:
    with pytest.raises(UnknownSchedulerException, match="no scheduler 'nope'"):
        config.dump(io.StringIO(), ["nope"])


def test_options_of_an_engine_that_is_nowhere_installed_can_be_given(home: Path) -> None:
    project(home, "[private]\nqueue = q\n")
    known, cfg = runopts(), {}
    known.add("queue", type_=str, help="where")

    config.apply("private", cfg, options=known)

    assert cfg == {"queue": "q"}
