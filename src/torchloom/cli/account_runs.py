"""Find runs of unix accounts for root's command line, with the rights of the account.

It is a separate module because only verbs that read files use it: a command that asks the plane
keeps root's rights.
"""

import click

from torchloom.errors import NotFound
from torchloom.launch.records.record import RunRecord
from torchloom.runner.job_lookup import find_job


def find_job_with_rights(reference: str | None) -> RunRecord:
    """Return the run, as `find_job` does; if it is an account's, switch to that account's rights.

    The command keeps those rights to its end and opens all other files as that account.
    """
    try:
        return find_job(reference)
    except NotFound:
        from torchloom import accounts  # most planes have none

        job = (reference or "").rpartition("/")[2]
        account = accounts.of_run(job)
        if account is None:
            raise
        click.get_current_context().with_resource(accounts.rights(account))
        return find_job(job)
