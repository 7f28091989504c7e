"""A browser as `loom open` starts one: it follows what it is given and writes down what it saw."""

import json
import os
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import sync_playwright

ME = """fetch("/api/me", {headers: {"X-Loom-Session": localStorage.getItem("loom-session")}})
  .then((answer) => answer.json())"""
given = sys.argv[-1]
file = Path(urlsplit(given).path)
text = file.read_text()
code = text.partition("#")[2].partition('"')[0]


def commands() -> list[str]:
    """Return every command line of this machine that has the code in it."""
    lines = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(each.read_text(errors="replace"))
        except OSError:
            continue
    return [line for line in lines if code in line]


seen = {"given": given, "mode": file.stat().st_mode & 0o777, "code": code, "shown": commands()}
with sync_playwright() as playwright:
    chromium = shutil.which("chromium") or "chromium"
    browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
    page = browser.new_page()
    page.goto(given)
    page.locator('[data-testid="live-dot"][data-state="live"]').wait_for(timeout=100_000)
    seen["url"] = page.url
    seen["me"] = page.evaluate(ME)
    browser.close()
Path(os.environ["SEEN"]).write_text(json.dumps(seen))
