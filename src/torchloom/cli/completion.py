"""Shell completion: one word list for all shells, from the table of verbs."""

from collections.abc import Callable, Mapping, Sequence

from torchloom.cli.verbs import ALIASES, VERBS, Verb

_BASH = """\
_loom() {
    local word
    COMPREPLY=()
    while IFS= read -r word; do
        COMPREPLY+=("$word")
    done < <(loom __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
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

_BUILT_IN = (
    *("dist.ddp", "dist.loom", "dist.spmd"),
    *("utils.binary", "utils.copy", "utils.echo", "utils.python", "utils.sh", "utils.touch"),
)
_STATES = ("submitted", "pending", "running", "succeeded", "failed", "cancelled")
_VALUES: Mapping[str, Sequence[str]] = {
    "-s": ("local",),
    "--scheduler": ("local",),
    "--state": _STATES,
    "--stream": ("stdout", "stderr", "combined"),
    "--print": _BUILT_IN,
}


def complete(words: list[str]) -> list[str]:
    """Return the completions of the last word; an empty list means file names."""
    *before, last = words or [""]
    return [word for word in _choices(before, last) if word.startswith(last)]


def _choices(before: list[str], last: str) -> Sequence[str]:
    if not before:
        return [*VERBS, *ALIASES] if last else list(VERBS)
    verb = VERBS.get(ALIASES.get(before[0], before[:1])[0])
    if verb is None:
        return ()
    if _wants_value(verb, before[-1]):
        return _VALUES.get(before[-1], ())
    free = _free_words(verb, before[1:])
    if verb.takes == "target" and free:
        return ()  # arguments of the script
    if last.startswith("-"):
        return [*(flag.removesuffix("=") for flag in verb.flags), "--help"]
    return _arguments(verb.takes, last)


def _wants_value(verb: Verb, word: str) -> bool:
    return f"{word}=" in verb.flags or word in ("-s", "-e", "-cfg")


def _free_words(verb: Verb, words: list[str]) -> list[str]:
    """Return the words that are neither flags nor their values."""
    pairs = zip(words, ["", *words], strict=False)
    return [w for w, before in pairs if not w.startswith("-") and not _wants_value(verb, before)]


def _arguments(kind: str, last: str) -> Sequence[str]:
    arguments: Mapping[str, Callable[[], Sequence[str]]] = {
        "job": lambda: ["@", *_jobs()],
        "target": lambda: _BUILT_IN if last else (),  # a script is meant more often
        "component": lambda: _BUILT_IN,
        "engine": lambda: ("local",),
        "config": lambda: ("init", "show"),
        "tracker": lambda: ("list",),
        "env": lambda: ("save", "load", "shell", "pack", "push"),
        "shell": lambda: list(SCRIPTS),
        "file": lambda: (),
    }
    return arguments[kind]() if kind else ()


def _jobs() -> list[str]:
    import os

    from torchloom.settings import runs_dir

    try:
        return sorted(name for name in os.listdir(runs_dir()) if not name.startswith("."))
    except OSError:
        return []
