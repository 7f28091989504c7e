"""Find the job a person means: by id, its beginning, its name, a handle, or `@`."""

from torchloom.errors import Ambiguous, NotFound, UserError
from torchloom.launch.records import catalog
from torchloom.launch.records.record import RunRecord
from torchloom.schedulers import LOCAL

NEWEST = "@"
_REMEDY = "`loom ls` lists what there is"


def find_job(reference: str | None) -> RunRecord:
    """Return the one run that is meant; left out, the only one that is active."""
    if reference is None:
        return _only_active(catalog.records())
    if "://" in reference:
        return _by_handle(reference)
    exact = catalog.record(reference)
    if exact is not None:
        return exact
    chosen = _choose(reference, catalog.records())
    return catalog.record(chosen.id) or chosen  # the list knows no ranks


def _by_handle(reference: str) -> RunRecord:
    from torchloom.specs.api import UnknownSchedulerException, parse_app_handle

    backend, _, app_id = parse_app_handle(reference)
    if backend not in LOCAL:
        raise UnknownSchedulerException(backend, LOCAL)
    record = catalog.record(app_id)
    if record is None:
        raise NotFound("job", app_id, (), _REMEDY)
    return record


def _choose(reference: str, records: list[RunRecord]) -> RunRecord:
    """Return the newest of this name, else the only one whose id begins so."""
    named = [record for record in records if record.name == reference]
    if reference == NEWEST:
        named = records
    if named:
        return named[0]
    begins = [record for record in records if reference and record.id.startswith(reference)]
    if len(begins) > 1:
        raise Ambiguous("job", reference, [record.id for record in begins])
    if not begins:
        known = [name for record in records for name in (record.id, record.name)]
        raise NotFound("job", reference, dict.fromkeys(known), _REMEDY)
    return begins[0]


def _only_active(records: list[RunRecord]) -> RunRecord:
    active = [record for record in records if not record.is_over()]
    if not active:
        raise UserError("no job is active; name one, or @ for the newest")
    if len(active) > 1:
        raise Ambiguous("job", "(none named)", [record.id for record in active])
    return active[0]
