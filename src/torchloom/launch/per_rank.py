"""`python -m torchloom.launch.per_rank`: `hosts/native_rank.py` by its stored name."""

import sys

from torchloom.launch.hosts.native_rank import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
