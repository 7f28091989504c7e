"""Find runs of unix accounts for root's command line, with the rights of the account.

It is a separate module because only verbs that read files use it: a command that asks the plane
keeps root's rights.
"""

from typing import TYPE_CHECKING

import click

from torchloom.errors import NotFound
from torchloom.launch.records.record import RunRecord
from torchloom.runner.job_lookup import find_job

if TYPE_CHECKING:
    from torchloom.accounts import Account


def find_job_with_rights(reference: str | None) -> RunRecord:
    """Return the run, as `find_job` does; if it is an account's, switch to that account's rights.

    The command keeps those rights to its end and opens all other files as that account.
    """
    record, account = find_job_and_account(reference)
    if account is not None:
        from torchloom import accounts

        click.get_current_context().with_resource(accounts.rights(account))
    return record


def find_job_and_account(reference: str | None) -> "tuple[RunRecord, Account | None]":
    """Return the run that is meant and the account it runs as, if that is another user."""
    try:
        return find_job(reference), None
    except NotFound as error:
        from torchloom import accounts  # most planes have none

        job = error.name  # of a job that the plane knows, its id
        account = accounts.of_run(job)
        if account is None:
            raise
        with accounts.rights(account):
            return find_job(job), account
