"""Shell completion: one word list for all shells, answered from the table of verbs."""

from torchloom.cli.verbs import ALIASES, VERBS

_BASH = """\
_loom() {
    local IFS=$'\\n'
    COMPREPLY=($(compgen -W "$(loom __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" -- \
"${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -o bashdefault -F _loom loom
"""

_ZSH = """\
#compdef loom
_loom() {
    local -a found
    found=("${(@f)$(loom __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    [[ -n "${found[1]}" ]] && compadd -a found
    _files
}
compdef _loom loom
"""

_FISH = """\
complete -c loom -a '(loom __complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def script(shell: str) -> str | None:
    """Return the shell's completion script; nothing for a shell we do not know."""
    return SCRIPTS.get(shell)


def complete(words: list[str]) -> list[str]:
    """Return what the last word may become; it may still be empty."""
    *before, last = words or [""]
    return [word for word in _choices(before, last) if word.startswith(last)]


def _choices(before: list[str], last: str) -> list[str]:
    if not before:
        return [*VERBS, *ALIASES] if last else list(VERBS)
    verb = VERBS.get(ALIASES.get(before[0], before[:1])[0])
    if verb is None:
        return []
    if last.startswith("-"):
        return [*verb.flags, "--help"]
    if before[0] == "completion":
        return list(SCRIPTS)
    return _arguments(verb.takes)


def _arguments(kind: str) -> list[str]:
    if kind == "job":
        return ["@", *_jobs()]
    if kind in ("component", "file"):
        return [f"dist.{n}" for n in ("ddp", "loom", "spmd")] + [
            f"utils.{n}" for n in ("binary", "copy", "echo", "python", "sh", "touch")
        ]
    return ["local"] if kind == "engine" else []


def _jobs() -> list[str]:
    import os

    from torchloom.settings import runs_dir

    try:
        return sorted(name for name in os.listdir(runs_dir()) if not name.startswith("."))
    except OSError:
        return []
