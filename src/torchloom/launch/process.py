"""`python -m torchloom.launch.process`: `supervisor/process.py` by its stored name."""

import sys

from torchloom.launch.supervisor.process import main

if __name__ == "__main__":
    main(sys.argv[1:])
