#!/bin/sh
# Run a script with a Python that can build this project, or say in one sentence what to install.
# usage: make/python.sh SCRIPT [ARG...]      PYTHON=/path/to/python overrides the search

# Prints the interpreter behind a virtual environment or a shim, so that .venv never builds itself.
probe='import sys
sys.version_info >= (3, 11) or sys.exit(3)
import ensurepip, venv
print(getattr(sys, "_base_executable", "") or sys.executable)'

old= bare= found=
for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
    found=$("$candidate" -c "$probe" 2>/dev/null) && break
    case $? in
        3) old=$candidate ;;
        1) bare=$candidate ;;
    esac
    found=
done

if [ -n "$found" ]; then
    exec "$found" "$@"
fi
if [ -n "$bare" ]; then
    echo "make: $bare has no venv module: install it (Debian, Ubuntu: apt install $bare-venv)" \
        "or name another Python with PYTHON=/path/to/python." >&2
else
    echo "make: torchLoom needs Python 3.11 or newer with venv${old:+ ($old is older)}: install it" \
        "(Debian, Ubuntu: apt install python3-venv; macOS: brew install python)" \
        "or name one with PYTHON=/path/to/python." >&2
fi
exit 1
