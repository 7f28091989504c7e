"""`python -m torchloom.launch.node`: `agent/node.py` by its stored name."""

import sys

from torchloom.launch.agent.node import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
