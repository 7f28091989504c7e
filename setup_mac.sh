#!/bin/sh
# Set up torchLoom on macOS: check the tools, then make .venv/ as setup.sh does.
# usage: ./setup_mac.sh [--packages]
#   --packages   install a missing Python first, by Homebrew
# Without --packages nothing outside this folder is changed. This script has never run on a Mac.

case ${1:-} in
    --packages | '') ;;
    *)
        echo "usage: ./setup_mac.sh [--packages]" >&2
        exit 2
        ;;
esac
cd "$(dirname "$0")" || exit 1

# macOS has stubs of git and make that open a dialog; this asks without one.
if ! xcode-select -p >/dev/null 2>&1; then
    echo "setup: git and make are missing; run: xcode-select --install" >&2
    exit 1
fi

# The Python of macOS is older than 3.11.
new='import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))'
if ! "${PYTHON:-python3}" -c "$new" 2>/dev/null; then
    if [ "${1:-}" != --packages ]; then
        echo "setup: no Python 3.11 or newer; run ./setup_mac.sh --packages (Homebrew)," \
            "or name one with PYTHON=/path/to/python" >&2
        exit 1
    fi
    if ! command -v brew >/dev/null; then
        echo "setup: no Homebrew here; see https://brew.sh, or install Python from python.org" >&2
        exit 1
    fi
    brew install python || exit 1
fi

make venv || exit 1
echo "Next: . .venv/bin/activate, then docs/guides/quick-start-by-hand.md"
