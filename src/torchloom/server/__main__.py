"""`python -m torchloom.server` is a server."""

import sys

from torchloom.server.main import main

if __name__ == "__main__":
    sys.exit(main())
