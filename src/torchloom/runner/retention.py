"""How long things are kept, by the user's config file.

Only the file in the user's home counts, or the one that `LOOMCONFIG` names: runs of all projects
lie in one folder, and none of those projects may delete what is of another.
"""

from pathlib import Path

from torchloom.doctor.findings import CheckFinding, note, ok, problem
from torchloom.errors import LoomError
from torchloom.rules.retention import SECTION, BadRetention, RetentionLimits, in_words, limits_of
from torchloom.runner import config


def limits() -> RetentionLimits:
    """Return what may go, and when; a section with a mistake is refused as a whole."""
    return limits_of({key: value for key, value, _ in _section(_home())})


def findings() -> list[CheckFinding]:
    """Return how `loom doctor` shows it."""
    try:
        own, everywhere = _section(_home()), _section(None)
        found = limits()
    except BadRetention as error:
        return [
            problem(SECTION, str(error), f"correct {_where(own)}; until then nothing is removed")
        ]
    except LoomError as error:
        return [problem(SECTION, str(error), "until then nothing is removed")]
    strangers = {file for _, _, file in everywhere} - {file for _, _, file in own}
    if strangers:
        text = f"{min(strangers)} has [{SECTION}], which has no effect there"
        return [note(SECTION, text, f"move it to {Path.home() / config.FILE_NAMES[0]}")]
    return [ok(SECTION, in_words(found))]


def _home() -> list[str]:
    return [str(Path.home())]


def _section(dirs: list[str] | None) -> list[tuple[str, str, str]]:
    found = config.origins(dirs)
    return [(key, value, file) for section, key, value, file in found if section == SECTION]


def _where(section: list[tuple[str, str, str]]) -> str:
    return section[0][2] if section else "the config file"
