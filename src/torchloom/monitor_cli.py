"""`python -m torchloom.monitor_cli` is the prompt of `loom monitor`."""

import sys

from torchloom.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["monitor", "--plain", *sys.argv[1:]]))
