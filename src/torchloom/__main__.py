"""`python -m torchloom` is `loom`."""

import sys

from torchloom.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
