"""Answer a question, whichever door it came through: what is refused is refused in words."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from torchloom.errors import LoomError, NotFound
from torchloom.weaver.acting import Acting
from torchloom.weaver.asking import Asking
from torchloom.weaver.inspecting import Inspecting
from torchloom.weaver.question import BadQuestion, Question
from torchloom.weaver.service import Weaver
from torchloom.weaver.store import StateLost

VERSION = 1
_LOOKING = ("status", "jobs", "job", "ranks", "metrics", "events", "knobs", "devices", "audit")
_CHANGING = ("set", "undo", "pause", "resume", "stop", "checkpoint", "device_event")
_log = logging.getLogger(__name__)

Answer = Callable[[Question], Awaitable[Any]]


class Answering:
    """Every question by name."""

    def __init__(self, weaver: Weaver) -> None:
        self._weaver = weaver
        self.looking = Asking(weaver)
        changing = Acting(weaver)
        self._answers: Mapping[str, Answer] = {
            **{name: getattr(self.looking, name) for name in _LOOKING},
            **{name: getattr(changing, name) for name in _CHANGING},
            "stacks": Inspecting(weaver).stacks,
        }

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._answers)

    async def answer(self, asked: Any) -> dict[str, Any]:
        """Return an answer or a refusal; a weaver that lost its database ends, and gives none."""
        try:
            question = checked(asked)
            name = str(question.facts.get("ask"))
            if name not in self._answers:
                raise NotFound("question", name, self._answers)
            return {"ok": await self._answers[name](question)}
        except StateLost as error:
            self._weaver.fail(error)
            raise
        except LoomError as error:
            return refusal(error)
        except Exception as error:  # a bug of ours must not leave a caller without an answer
            _log.exception("%s could not be answered", asked)
            return {"error": f"the weaver failed: {error!r}", "code": "internal", "exit_code": 1}


def checked(asked: Any) -> Question:
    """Return a question that this weaver understands."""
    if not isinstance(asked, dict) or asked.get("version") != VERSION:
        raise BadQuestion(f"this weaver is asked in version {VERSION}; upgrade torchloom")
    return Question(asked)


def refusal(error: LoomError) -> dict[str, Any]:
    """Return an error as every door says it."""
    return {"error": str(error), "code": error.code, "exit_code": error.exit_code}
