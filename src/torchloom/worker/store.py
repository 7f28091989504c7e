"""`python -m torchloom.worker.store`: as an earlier torchloom calls the store process."""

import sys

from torchloom.worker.process.store import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
