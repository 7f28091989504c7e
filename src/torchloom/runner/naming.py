"""Find the job a person means: by id, its beginning, its name, a handle, or `@`."""

from torchloom.errors import Ambiguous, NotFound
from torchloom.launch import catalog
from torchloom.launch.record import Record

NEWEST = "@"
LOCAL = ("local", "local_cwd")


def find_job(reference: str | None) -> Record:
    """Return the one run that is meant; left out, the only one that is active."""
    if reference and "://" in reference:
        return _by_handle(reference)
    exact = catalog.record(reference) if reference else None
    if exact is not None:
        return exact
    return _choose(reference, catalog.records())


def _by_handle(reference: str) -> Record:
    from torchloom.specs.api import UnknownSchedulerException, parse_app_handle

    backend, _, app_id = parse_app_handle(reference)
    if backend not in LOCAL:
        raise UnknownSchedulerException(backend, LOCAL)
    record = catalog.record(app_id)
    if record is None:
        raise NotFound("job", app_id, (), "`loom ls` lists what there is")
    return record


def _choose(reference: str | None, records: list[Record]) -> Record:
    if reference is None:
        return _only_active(records)
    if reference == NEWEST and records:
        return records[0]
    begins = [record for record in records if reference and record.id.startswith(reference)]
    named = [record for record in records if record.name == reference]
    if named:
        return named[0]
    if len(begins) > 1:
        raise Ambiguous("job", reference, [record.id for record in begins])
    if not begins:
        known = [name for record in records for name in (record.id, record.name)]
        raise NotFound("job", reference, known, "`loom ls` lists what there is")
    return begins[0]


def _only_active(records: list[Record]) -> Record:
    active = [record for record in records if not record.is_over()]
    if len(active) == 1:
        return active[0]
    if active:
        raise Ambiguous("job", "(none given)", [record.id for record in active])
    raise NotFound("job", "(none given)", (), "no job is active; name one, or @ for the newest")
