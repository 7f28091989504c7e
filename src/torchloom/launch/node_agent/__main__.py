"""Start the node's agent."""

import sys

from torchloom.launch.node_agent.main import main

if __name__ == "__main__":
    sys.exit(main())
