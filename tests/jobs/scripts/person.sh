#!/bin/sh
# Be somebody on this host: an own unix user, an own home, no variables of whoever called.
# usage: person.sh HOME UID PYTHON WORD..    PYTHON is the folder of the interpreter
set -e
home=$1
uid=$2
python=$3
shift 3

mkdir -p "$home"
chown "$uid:$uid" "$home"
chmod 700 "$home"
as="setpriv --reuid=$uid --regid=$uid --clear-groups --inh-caps=-all"
if ! $as test -x "$python/bin"; then # it lies in a private home: show it, and nothing else of that
    top=/$(echo "$python" | cut -d/ -f2)
    kept=$home.python
    mkdir -p "$kept"
    mount --bind "$python" "$kept"
    mount -t tmpfs -o mode=755 tmpfs "$top"
    mkdir -p "$python"
    mount --bind "$kept" "$python"
fi
exec env -i HOME="$home" XDG_RUNTIME_DIR="$home" PATH="$PATH" $as "$@"
