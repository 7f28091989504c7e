"""Runs of unix accounts, for root's command line: they are read with the rights of their account.

It is a module of its own because the verbs that read files and no others do so: a command that
asks the plane keeps root's rights.
"""

from typing import TYPE_CHECKING

import click

from torchloom.errors import NotFound
from torchloom.launch.records.record import RunRecord
from torchloom.runner.job_lookup import find_job

if TYPE_CHECKING:
    from torchloom.accounts import Account


def find_job_with_rights(reference: str | None) -> RunRecord:
    """Return the run that is meant, as `find_job` does; of an account's, take its rights.

    The command keeps them to its end: whatever else it opens, it opens as that account.
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
    except NotFound:
        from torchloom import accounts  # most planes have none

        job = (reference or "").rpartition("/")[2]
        account = accounts.of_run(job)
        if account is None:
            raise
        with accounts.rights(account):
            return find_job(job), account
