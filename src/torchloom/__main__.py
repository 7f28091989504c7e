"""`python -m torchloom` is `loom`."""

from torchloom.cli.main import run

if __name__ == "__main__":
    run()
