"""`make docs` builds the manual without a network, and refuses one with a dead link."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .world import ROOT

FILES = ("mkdocs.yml", "make/docs.py", "docs/assets")
INDEX = "# The manual\n\n[A guide](guides/first.md) and [its end](guides/first.md#the-end).\n"
GUIDE = """# A guide

```console refused
$ loom ls --newest
```

## The end

[Back](../index.md)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Give a checkout with a manual of two pages."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    write(tmp_path, "index.md", INDEX)
    write(tmp_path, "guides/first.md", GUIDE)
    return tmp_path


def write(tree: Path, name: str, text: str) -> None:
    path = tree / "docs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def build(tree: Path) -> "subprocess.CompletedProcess[str]":
    """Run `make docs` there, where no other host answers."""
    env = {**os.environ, "https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    words = [sys.executable, "make/docs.py"]
    return subprocess.run(words, cwd=tree, env=env, capture_output=True, text=True, check=False)


@pytest.mark.process
def test_the_manual_is_built_offline_and_loads_nothing_from_elsewhere(tree: Path) -> None:
    (tree / "docs/screens").mkdir()
    shutil.copy(next((ROOT / "docs/screens").glob("*.png")), tree / "docs/screens/a.png")
    write(tree, "evidence/figures.json", "{}")

    done = build(tree)

    site = tree / ".build/site"
    assert (done.returncode, done.stdout) == (0, f"{site / 'index.html'}\n"), done.stderr
    files = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    assert {"guides/first.html", "search/search_index.js", "screens/a.png"} <= files
    assert not [name for name in files if name.startswith("evidence")]
    assert '<div class="language-console highlight">' in (site / "guides/first.html").read_text()
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"([^\"]*)", page.read_text()
        )
        assert [address for address in loaded if "//" in address] == [], page


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("guides/second.md", "# B\n\n[no](absent.md)\n", "'absent.md'"),
        (
            "guides/second.md",
            "# B\n\n[no](first.md#absent)\n",
            "no such anchor|not contain an anchor",
        ),
        ("guides/second.md", "# B\n\n[no](../../README.md)\n", "README.md"),
        ("guides/second.md", "# B\n\n[no](/guides/first.md)\n", "absolute"),
        ("guides/second.md", "# B\n\n[no](../evidence/a.json)\n", "excluded"),
        ("guides/second.md", "# B\n\n![no](absent.png)\n", "absent.png"),
        ("stray.md", "# In no section\n", 'not included in the "nav"'),
        ("notes/stray.md", "# In no section\n", 'not included in the "nav"'),
    ],
)
def test_a_dead_link_or_a_page_in_no_section_fails(
    name: str, text: str, why: str, tree: Path
) -> None:
    write(tree, "evidence/a.json", "{}")
    write(tree, name, text)

    done = build(tree)

    assert done.returncode == 1
    assert re.search(why, done.stderr), done.stderr
    assert not (tree / ".build/site").exists()


@pytest.mark.process
def test_the_manual_is_built_once(tree: Path) -> None:
    build(tree)
    page = tree / ".build/site/index.html"
    before = page.stat().st_mtime_ns

    build(tree)

    assert page.stat().st_mtime_ns == before
    write(tree, "index.md", INDEX.replace("The manual", "Another"))
    build(tree)
    assert "Another" in page.read_text()
