"""`python -m torchloom.weaver.plane`, for older clients and scripts: it is `torchloom.plane`."""

import sys

from torchloom.plane.__main__ import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
