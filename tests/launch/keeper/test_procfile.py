import json
import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc to show it"),
]

_PROGRAM = """
import json, os, sys
from torchloom.launch.keeper import spawn as procfile

words, env, how = json.loads(sys.argv[1])
os.environ.clear()
os.environ.update(env)
getattr(procfile, how)(words, env)
shown = [open(f"/proc/self/{name}", "rb").read() for name in ("cmdline", "environ", "comm")]
print(json.dumps([text.decode() for text in shown]))
"""


def _shown(how: str, words: list[str], env: dict[str, str], room: int = 0) -> list[str]:
    asked = json.dumps([words, env, how])
    own = {**os.environ, "LOOM_ROOM": "." * room}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, asked], capture_output=True, text=True, check=True, env=own
    )
    shown: list[str] = json.loads(done.stdout)
    return shown


def test_words_and_variables_of_any_length_are_shown_to_the_letter() -> None:
    words = ["/usr/bin/python3", "train.py", "", "x" * 40_000]
    env = {"LOOM_JOB": "job", "LONG": "y" * 60_000, "EMPTY": ""}

    cmdline, environ, name = _shown("show", words, env)

    assert cmdline.split("\0") == [*words, ""]
    assert environ.split("\0") == [*(f"{k}={v}" for k, v in env.items()), ""]
    assert name == "python3\n"


def test_where_the_kernel_takes_no_new_place_the_job_is_shown_first_in_the_old_one() -> None:
    env = {"LONG": "y" * 50_000, "LOOM_NODE": "host", "LOOM_JOB": "job"}

    cmdline, environ, _ = _shown("overwrite", ["python", "train.py"], env, room=4096)

    assert cmdline.rstrip("\0") == "python\0train.py"
    assert environ.startswith("LOOM_NODE=host\0LOOM_JOB=job\0LONG=yyyy")
