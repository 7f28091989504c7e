"""`python -m torchloom.worker.zygote`: as an earlier torchloom calls the zygote."""

import sys

from torchloom.worker.process.zygote import main

if __name__ == "__main__":
    main(sys.argv[1:])
