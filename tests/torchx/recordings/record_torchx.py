"""Write down what the real TorchX does, for `test_torchx_recorded.py` to compare with.

Run it with an interpreter that has `torchx-nightly`: `python record_torchx.py`.
What is asked stands in `questions.py`; this file only asks TorchX and writes the answers.
"""

import json
from importlib.metadata import version
from pathlib import Path

import questions

if __name__ == "__main__":
    answers = {"version": version("torchx-nightly"), **questions.ask()}
    target = Path(__file__).with_name("torchx.json")
    target.write_text(json.dumps(answers, indent=1, sort_keys=True, default=repr) + "\n")
    print(f"wrote {target}")
