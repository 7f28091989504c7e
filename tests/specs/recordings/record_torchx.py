"""Write down what the real TorchX does, for `test_torchx_recording.py` to compare with.

Run it with an interpreter that has `torchx-nightly`: `python record_torchx.py`.
What is asked stands in `questions.py`; this file only asks TorchX and writes the answers.
"""

import json
import os
import time
from importlib.metadata import version
from pathlib import Path

import questions

os.environ["TZ"] = "UTC"
time.tzset()

if __name__ == "__main__":
    import torchx.specs as specs
    import torchx.specs.api as api

    answers = {"version": version("torchx-nightly"), **questions.ask(specs, api)}
    target = Path(__file__).with_name("torchx.json")
    target.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")
    print(f"wrote {target}")
