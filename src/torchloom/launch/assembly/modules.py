"""Run a command after `module load`, as a user's own shell would before it types the command."""

import shlex
from collections.abc import Sequence
from dataclasses import replace

from torchloom.launch.assembly.request import Request
from torchloom.launch.shim import FOLDER
from torchloom.launch.variables import MODULES_VARIABLE

# Where `module` is defined on hosts whose shells do not have it from the start.
_INITS = (
    '"$MODULESHOME/init/bash"',
    '"$LMOD_PKG/init/bash"',
    "/etc/profile.d/lmod.sh",
    "/etc/profile.d/z00_lmod.sh",
    "/etc/profile.d/modules.sh",
    "/usr/share/lmod/lmod/init/bash",
    "/usr/share/modules/init/bash",
)


def with_modules(request: Request) -> Request:
    """Return a request whose command loads what its variables say on every host; else as it is."""
    modules = request.env.get(MODULES_VARIABLE, "").split()
    if not modules:
        return request
    return replace(request, command=after_modules(request.command, modules))


def after_modules(command: Sequence[str], modules: Sequence[str]) -> tuple[str, ...]:
    """Return a command that first loads modules, or says why it cannot and exits with 2.

    It is no login shell: nothing but the modules changes the environment. A module of which a
    version is loaded stays as it is: whoever loaded it chose it.
    """
    return ("bash", "-c", _script(modules), "bash", *command)


def _script(modules: Sequence[str]) -> str:
    """Return one line: launchers hand words on, but not all of them lines."""
    names = shlex.join(modules)
    has = "type module >/dev/null 2>&1"
    no_module = _refusal(
        f"$(uname -n) has no `module` to load {names}; take them out of its entry in "
        f"\\$LOOM_HOME/sites.toml, or set {MODULES_VARIABLE}= to load none"
    )
    no_load = _refusal("$(uname -n): `module load $_loom_each` failed")
    return (
        f"for _loom_each in {' '.join(_INITS)}; do "
        f'{has} && break; [ -r "$_loom_each" ] && . "$_loom_each"; done; '
        f"{has} || {no_module}; "
        f"for _loom_each in {names}; do "
        'case ":$LOADEDMODULES:" in *":$_loom_each:"* | *":$_loom_each/"*) ;; '
        f'*) module load "$_loom_each" >&2 || {no_load} ;; esac; done; '
        f'export {MODULES_VARIABLE}= PATH={shlex.quote(FOLDER)}:"$PATH"; exec "$@"'
    )


def _refusal(text: str) -> str:
    quoted = text.replace("`", "\\`").replace('"', '\\"')
    return f'{{ echo "loom: {quoted}" >&2; exit 2; }}'
