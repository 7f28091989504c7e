#!/bin/sh
# Set up torchLoom on Linux: check the tools, then make .venv/ as setup.sh does.
# usage: ./setup_linux.sh [--packages]
#   --packages   install missing tools first, by apt-get (Debian, Ubuntu), with sudo if needed
# Without --packages nothing outside this folder is changed.

case ${1:-} in
    --packages | '') ;;
    *)
        echo "usage: ./setup_linux.sh [--packages]" >&2
        exit 2
        ;;
esac
cd "$(dirname "$0")" || exit 1

missing=
for tool in git make; do
    command -v "$tool" >/dev/null || missing="$missing $tool"
done
if [ -z "${PYTHON:-}" ]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
fi

if [ -n "$missing" ] && [ "${1:-}" = --packages ]; then
    if ! command -v apt-get >/dev/null; then
        echo "setup: no apt-get here; install by hand:$missing" >&2
        exit 1
    fi
    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    # one word a package
    # shellcheck disable=SC2086
    $sudo apt-get update && $sudo apt-get install -y $missing || exit 1
elif [ -n "$missing" ]; then
    echo "setup: missing:$missing; install them, or run ./setup_linux.sh --packages" >&2
    exit 1
fi

make venv || exit 1
echo "Next: . .venv/bin/activate, then docs/guides/quick-start-by-hand.md"
