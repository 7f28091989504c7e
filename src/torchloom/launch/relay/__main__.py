"""Start the node's agent."""

import sys

from torchloom.launch.relay.main import main

if __name__ == "__main__":
    sys.exit(main())
