"""`python -m torchloom.launch.relay`: `node_agent/main.py` by its stored name."""

import sys

from torchloom.launch.node_agent.main import main

if __name__ == "__main__":
    sys.exit(main())
