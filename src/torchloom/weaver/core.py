"""`python -m torchloom.weaver.core` is a weaver, too: at torchLoom_ADDR, else on port 4222 here."""

import sys

from torchloom.weaver.main import main

if __name__ == "__main__":
    sys.exit(main())
