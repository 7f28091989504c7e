"""`python -m torchloom.weaver` is a weaver."""

import sys

from torchloom.weaver.main import main

if __name__ == "__main__":
    sys.exit(main())
