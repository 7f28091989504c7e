"""The report of a series of faults, as JSON or as text in 80 columns."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from torchloom.chaos.checker.attribution import Cost, Name
from torchloom.chaos.checker.judgement import Judged
from torchloom.chaos.checker.promises import PROMISES, PromiseAnswer
from torchloom.chaos.checker.readers import Struck

WIDTH = 80
_HEADS = ("KIND", "STRUCK", "BACK", "NAMED", "KNOWN", "p50", "SLOWEST", "AGAIN")
_EXACT = {True: "the same", False: "different", None: "not known"}

EXIT_CODES = {"ok": 0, "not ok": 1, "unknown": 3}

Report = dict[str, Any]


def report_of(judged: Judged) -> Report:
    """Return the report; `ok` if every promise held and the job recovered from every fault."""
    faults = [_fault(judged, *one) for one in judged.faults]
    promises = [
        {"name": one.name, "promise": PROMISES[one.name], "answer": str(one.answer)}
        | {"fact": one.fact}
        for one in judged.verdicts
    ]
    verdict = _verdict(judged, faults)
    return {
        "ok": verdict == "ok",
        "verdict": verdict,
        "job": judged.case.job,
        "state": judged.state,
        "seed": judged.found.series.seed,
        "ended": judged.found.series.ended,
        "missed": judged.found.series.missed,
        "totals": _totals(faults),
        "exact": judged.is_exact,
        "promises": promises,
        "faults": faults,
    }


def _verdict(judged: Judged, faults: Sequence[Report]) -> str:
    answers = {one.answer for one in judged.verdicts}
    if PromiseAnswer.BROKEN in answers or not all(one["is_recovered"] for one in faults):
        return "not ok"
    return "unknown" if PromiseAnswer.UNKNOWN in answers else "ok"


def _fault(judged: Judged, fault: Struck, name: Name, cost: Cost) -> Report:
    is_recovered = fault.recovered is not None or judged.state == "SUCCEEDED"
    return {
        "n": fault.n,
        "kind": fault.kind,
        "rank": fault.rank,
        "at": fault.at,
        "step": fault.step,
        "is_recovered": is_recovered,
        "named": name.word,
        "named_rightly": name.is_right,
        "detected_seconds": _rounded(cost.detected),
        "recovered_seconds": _rounded(cost.recovered),
        "generation": cost.generation,
        "steps_again": cost.again,
        "committed_steps_lost": cost.lost,
        "survivors_kept": cost.kept,
        "survivors": cost.others,
        "why": name.why or fault.why,
    }


def _totals(faults: Sequence[Report]) -> Report:
    """Return the totals; the common cost of several faults counts once."""
    grown = {one["generation"]: one for one in faults if one["generation"] is not None}
    return {
        "struck": len(faults),
        "recovered": sum(one["is_recovered"] for one in faults),
        "named_wrongly": sum(one["named_rightly"] is False for one in faults),
        "steps_again": sum(one["steps_again"] or 0 for one in grown.values()),
        "committed_steps_lost": sum(one["committed_steps_lost"] or 0 for one in grown.values()),
        "survivors_kept": sum(one["survivors_kept"] or 0 for one in faults),
        "survivors": sum(one["survivors"] or 0 for one in faults),
        "detected_seconds": _spread(one["detected_seconds"] for one in faults),
        "recovered_seconds": _spread(one["recovered_seconds"] for one in faults),
    }


def _spread(times: Iterable[float | None]) -> Report:
    known = [time for time in times if time is not None]
    if not known:
        return {"p50": None, "slowest": None, "n": 0}
    return {"p50": round(median(known), 6), "slowest": max(known), "n": len(known)}


def _rounded(time: float | None) -> float | None:
    return None if time is None else round(time, 6)


# Text.


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the report as lines of at most 80 columns."""
    totals = report["totals"]
    seed = "" if report["seed"] is None else f", seed {report['seed']}"
    yield from _wrapped(
        f"{totals['struck']} faults on {report['job']}{seed}: {totals['recovered']} recovered"
        f", {totals['struck'] - totals['recovered']} not; {report['missed']} could not be struck"
    )
    yield ""
    yield from _table(report["faults"])
    yield ""
    for one in report["promises"]:
        yield from _wrapped(f"{one['name']:<4} {one['answer']:<8} {one['promise']}", 14)
        if one["fact"]:
            yield from _wrapped(f"{'':14}{one['fact']}", 14)
    yield ""
    for one in report["faults"]:
        if one["named_rightly"] is False or not one["is_recovered"]:
            yield from _wrapped(_complaint(one), 2)
    yield from _wrapped(
        f"committed steps lost: {totals['committed_steps_lost']}; repeated:"
        f" {totals['steps_again']}; survivors kept: {totals['survivors_kept']} of"
        f" {totals['survivors']}; bits: {_EXACT[report['exact']]}"
    )
    names = [one["name"] for one in report["promises"] if one["answer"] == PromiseAnswer.UNKNOWN]
    is_unknown = report["verdict"] == "unknown"
    yield f"nothing broken; unknown: {', '.join(names)}" if is_unknown else report["verdict"]


def _complaint(fault: Mapping[str, Any]) -> str:
    what = f"fault {fault['n']} ({fault['kind']})"
    if not fault["is_recovered"]:
        return f"no recovery from {what}{': ' if fault['why'] else ''}{fault['why']}"
    return f"{what} has a wrong reason: {fault['why']}"


def _table(faults: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    kinds = dict.fromkeys(one["kind"] for one in faults)
    rows = [_HEADS, *(_row(kind, [o for o in faults if o["kind"] == kind]) for kind in kinds)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for kind, *figures in rows:
        cells = (figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True))
        yield "  ".join((kind.ljust(widths[0]), *cells))[:WIDTH]


def _row(kind: str, faults: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    known = _spread(one["detected_seconds"] for one in faults)
    back = _spread(one["recovered_seconds"] for one in faults)
    asked = [one for one in faults if one["named_rightly"] is not None]
    return (
        kind,
        str(len(faults)),
        str(sum(one["is_recovered"] for one in faults)),
        f"{sum(one['named_rightly'] for one in asked)}/{len(asked)}" if asked else "-",
        _seconds(known["p50"]),
        _seconds(back["p50"]),
        _seconds(back["slowest"]),
        str(sum(one["steps_again"] or 0 for one in faults)),
    )


def _seconds(time: float | None) -> str:
    return "-" if time is None else f"{time:.2f} s"


def _wrapped(text: str, indent: int = 0) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=" " * indent, drop_whitespace=True, break_on_hyphens=False
    )
