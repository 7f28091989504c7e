"""App handles and the errors about names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom.errors import Failure, UserError
from torchloom.specs import (
    MalformedAppHandleException,
    ParsedAppHandle,
    UnknownAppException,
    UnknownSchedulerException,
    make_app_handle,
    parse_app_handle,
)
from torchloom.specs.exceptions import AppStatusError

PART = st.text(st.characters(exclude_characters="/:\n", exclude_categories=["Cs"]), min_size=1)


@given(PART, PART, PART)
def test_a_handle_is_read_back_as_it_was_made(scheduler: str, session: str, app_id: str) -> None:
    parts = ParsedAppHandle(scheduler, session, app_id)

    assert parse_app_handle(make_app_handle(*parts)) == parts


def test_a_malformed_handle_is_shown_short_and_with_an_example() -> None:
    with pytest.raises(MalformedAppHandleException) as caught:
        parse_app_handle("x" * 10_000)

    assert str(caught.value) == (
        f"'{'x' * 77}...' is not of the form <scheduler_backend>://<session_name>/<app_id>,"
        " for example local://torchx/train-1"
    )


def test_an_unknown_scheduler_has_a_nearest_one() -> None:
    assert str(UnknownSchedulerException("slrum", ["slurm", "local"])) == (
        "no scheduler 'slrum'; did you mean 'slurm'?; known: local, slurm"
    )
    assert str(UnknownSchedulerException("x")) == "no scheduler 'x'; `loom engines` lists them"


def test_every_error_knows_whose_fault_it_is() -> None:
    mistakes = (MalformedAppHandleException, UnknownAppException, UnknownSchedulerException)

    assert all(issubclass(mistake, UserError) for mistake in mistakes)
    assert issubclass(AppStatusError, Failure)
