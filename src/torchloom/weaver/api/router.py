"""Answer a question, whichever door it came through: what is refused is refused in words."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from torchloom.errors import LoomError, NotFound
from torchloom.weaver.api.checkpoints import CheckpointApi
from torchloom.weaver.api.commands import CommandApi
from torchloom.weaver.api.queries import QueryApi, RunApi, StackApi
from torchloom.weaver.api.queue import QueueApi
from torchloom.weaver.api.refusals import refusal
from torchloom.weaver.api.request import BadRequest, WeaverRequest
from torchloom.weaver.api.resumption import PERIOD, ResizeApi, ResumeApi
from torchloom.weaver.api.users import UserApi
from torchloom.weaver.service import Weaver
from torchloom.weaver.store import StateLost

VERSION = 1
_LOOKING = ("status", "jobs", "job", "ranks", "metrics", "events", "knobs", "devices", "audit")
_CHANGING = ("set", "undo", "stop", "checkpoint", "digest", "device_event", "device_outlook")
_GOING_ON = ("pause", "resume")
_PEOPLE = ("users", "user_put", "tokens", "token_add", "token_revoke", "link_add", "link_use")
_QUEUE = (
    "submit",
    "submit_many",
    "cancel",
    "cancel_many",
    "queue",
    "cluster",
    "quota",
    "quotas",
)
_SAVED = ("checkpoints", "checkpoint_remove", "checkpoint_verified")
_AT_THE_DOOR = (  # whoever is let in there is known
    *_PEOPLE,
    "digest",
    "submit",
    "submit_many",
    "cancel",
    "cancel_many",
    "quota",
    "retain",
    "retention",
    "remove",
    "checkpoint_remove",
    "checkpoint_verified",
)
_RUNS = ("experiments", "experiment", "compare", "curves")
_log = logging.getLogger(__name__)

Answer = Callable[[WeaverRequest], Awaitable[Any]]


class Router:
    """Every question by name."""

    def __init__(self, weaver: Weaver) -> None:
        self._weaver = weaver
        self.looking = QueryApi(weaver)
        changing = CommandApi(weaver)
        resuming = ResumeApi(weaver, changing)
        resizing = ResizeApi(weaver, changing, resuming)
        weaver.every(PERIOD, resizing.look)
        admitting = UserApi(weaver.users)
        browsing = RunApi(weaver)
        submitting = QueueApi(weaver, self.looking)
        saved = CheckpointApi(weaver)
        self._answers: Mapping[str, Answer] = {
            **{name: getattr(self.looking, name) for name in _LOOKING},
            **{name: getattr(changing, name) for name in _CHANGING},
            **{name: getattr(resuming, name) for name in _GOING_ON},
            "resize": resizing.resize,
            **{name: getattr(browsing, name) for name in _RUNS},
            "stacks": StackApi(weaver).stacks,
            **{name: getattr(saved, name) for name in _SAVED},
            "retain": weaver.retention.answer,
            "retention": weaver.retention.rules,
            "remove": weaver.retention.remove,
            **{name: getattr(admitting, name) for name in _PEOPLE},
            **{name: getattr(submitting, name) for name in _QUEUE},
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Return what may be asked over the bus: nobody is let in there, and nothing is run."""
        return tuple(name for name in self._answers if name not in _AT_THE_DOOR)

    async def answer(self, asked: Any) -> dict[str, Any]:
        """Return an answer or a refusal; a weaver that lost its database ends, and gives none."""
        name = ""
        try:
            question = checked(asked)
            name = str(question.facts.get("ask"))
            if name not in self._answers:
                raise NotFound("question", name, self._answers)
            return {"ok": await self._answers[name](question)}
        except StateLost as error:
            self._weaver.tasks.fail(error)
            raise
        except LoomError as error:
            return refusal(error)
        except Exception as error:  # a bug of ours must not leave a caller without an answer
            _log.exception("%s could not be answered", name)  # never the facts: some are secret
            return {"error": f"the weaver failed: {error!r}", "code": "internal", "exit_code": 1}


def checked(asked: Any) -> WeaverRequest:
    """Return a question that this weaver understands."""
    if not isinstance(asked, dict) or asked.get("version") != VERSION:
        raise BadRequest(f"this weaver is asked in version {VERSION}; upgrade torchloom")
    return WeaverRequest(asked)
