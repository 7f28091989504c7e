"""A `torchrun` that runs `loom launch` with torchrun's options."""

import sys

from torchloom.cli.main import run
from torchloom.launch.grammar.command import AS_TORCHRUN

if __name__ == "__main__":
    sys.argv[1:] = ["launch", AS_TORCHRUN, *sys.argv[1:]]
    run()
