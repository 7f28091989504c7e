"""The generated pages of the reference are what the code gives, and read by the code again."""

import importlib.util
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from torchloom.cli.verbs import GROUPS, VERBS
from torchloom.launch.hosts.sites import FIELDS, Site
from torchloom.rules import retention
from torchloom.schedulers import engines, get_scheduler_factories
from torchloom.server.security.policy import POLICY, WEBSOCKET
from torchloom.weaver.store import daily_backup

from .world import ROOT

FOLDER = ROOT / "docs" / "reference"
PAGES = {path.relative_to(FOLDER).as_posix(): path.read_text() for path in FOLDER.rglob("*.md")}
OWN = ("/docs", "/openapi.json")  # of the server's own description


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Give make/reference.py as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "make"))
    found = importlib.util.spec_from_file_location("reference", ROOT / "make" / "reference.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.process
def test_the_generated_pages_are_what_the_code_gives() -> None:
    words = [sys.executable, "make/reference.py", "--check"]

    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_page_that_is_old_or_of_something_gone_is_named(
    reference: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "FOLDER", tmp_path)
    wanted = {"a.md": f"{reference.MARK}a\n", "b.md": f"{reference.MARK}b\n"}
    (tmp_path / "a.md").write_text(wanted["a.md"])
    (tmp_path / "support.md").write_text("# Written by people\n")

    assert reference.stale(wanted) == ["b.md"]
    (tmp_path / "b.md").write_text(f"{reference.MARK}another\n")
    (tmp_path / "gone.md").write_text(f"{reference.MARK}c\n")
    assert reference.stale(wanted) == ["b.md", "gone.md"]


def test_every_verb_has_a_page_that_the_index_names_in_the_group_of_the_help() -> None:
    assert {f"cli/{verb}.md" for verb in VERBS} <= PAGES.keys()

    sections = re.split(r"^## ", PAGES["cli/index.md"], flags=re.M)
    shown = {text.partition("\n")[0]: re.findall(r"\]\((\w+)\.md\)", text) for text in sections}

    assert {name: tuple(shown[name]) for name in GROUPS} == GROUPS


def test_options_and_arguments_are_named_one_by_one() -> None:
    ranges = [name for name, text in PAGES.items() if re.search(r"[A-Z] RANGE", text)]

    assert ranges == []
    assert "- `verbose`: Log the result on every rank, not only on rank 0.\n" in PAGES["python.md"]


def test_the_keys_of_config_files_are_those_that_are_read() -> None:
    page = PAGES["config-files.md"]
    defaults = {key: default for key, (default, _) in retention.KEYS.items() if default}
    named = {each.name for each in fields(Site)} - {"name", "hosts", "where"}

    assert retention.limits_of(defaults) == retention.RetentionLimits()
    assert set(retention.KEYS) == {each.name for each in fields(retention.RetentionLimits)}
    assert set(daily_backup.KEYS) == {each.name for each in fields(daily_backup.BackupRules)}
    assert FIELDS.keys() == named | {"match"}
    assert all(f"| `{key}` |" in page for key in (*retention.KEYS, *daily_backup.KEYS, *FIELDS))
    assert all(f"\n### {name}\n" in page for name in engines(get_scheduler_factories()))


def test_every_route_has_its_heading_and_role() -> None:
    shown = re.findall(r"^### ([A-Z]+) (/\S*)\n(?:.*\n)*?- Role: (\w+)$", PAGES["rest.md"], re.M)
    documented = {(method, path): role for method, path, role in shown}
    rows = {
        (method, path.replace(":path}", "}")): role
        for (method, path), role in POLICY.items()
        if path.startswith("/api/") and method != WEBSOCKET
    }

    assert rows.items() <= documented.items()


def test_every_schema_of_json_has_its_section() -> None:
    names = {path.name.partition(".")[0] for path in (ROOT / "docs/json").glob("*.json")}

    assert names == set(re.findall(r"\{#([\w-]+)\}$", PAGES["json.md"], re.M))


def test_no_table_of_a_generated_page_is_torn() -> None:
    for name, text in PAGES.items():
        tables = re.findall(r"(?:^\|.*\n?)+", text, re.M)
        for each in tables:
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in each.splitlines()}
            assert len(widths) == 1, (name, each)


def test_the_examples_of_the_job_file_are_jobs() -> None:
    from torchloom.specs.jobspec_shape import job_from_dict

    examples = re.findall(r"^```yaml\n(.*?)^```", PAGES["job-spec.md"], re.M | re.S)

    jobs = [job_from_dict(yaml.safe_load(text)) for text in examples]
    assert [job.name for job in jobs] == ["mnist-ddp-demo", "fine-tune"]
