"""`loom inspect`: show the audit log of a job, or the stacks of its ranks."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import click

from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.jobs.control import in_words
from torchloom.cli.output import clip, echo, echo_json, printable, table
from torchloom.errors import NotFound, UserError
from torchloom.rules.verdict import numbers

VIEWS = ("audit", "stacks")
_PATIENCE = 30.0  # seconds; stacks are taken twice, on every node


@click.command(
    "inspect",
    cls=LoomCommand,
    epilog=examples(
        "loom inspect gpt stacks --rank 3",
        "loom inspect gpt audit",
        "loom inspect gpt audit --yaml > changes.yaml",
    ),
)
@click.argument("job")
@click.argument("what", metavar="audit|stacks")
@click.option("--yaml", "as_yaml", is_flag=True, help="Print the input of `loom set --replay`.")
@click.option("--rank", type=int, metavar="N", help="Only the stacks of this rank.")
@click.option("--threads", is_flag=True, help="Stacks of all threads, by rank.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list; for stacks, one object.")
def command(
    job: str, what: str, as_yaml: bool, rank: int | None, threads: bool, as_json: bool
) -> None:
    """Show the audit log or the stacks of JOB.

    audit: every command in order, with author, reason, step and outcome.

    stacks: what each rank is executing, sampled twice, and which rank blocks the others.
    """
    if what not in VIEWS:
        raise NotFound("view", what, VIEWS)
    if what == "stacks":
        if as_yaml:
            raise UserError("stacks are printed as text or with --json; --yaml is for audit")
        _stacks(job, rank, threads, as_json)
    else:
        if rank is not None or threads:
            raise UserError("--rank and --threads are for stacks")
        _audit(job, as_yaml, as_json)


def _audit(job: str, as_yaml: bool, as_json: bool) -> None:
    from torchloom.client import chosen

    commands = chosen.ask("audit", job=job)
    if as_json:
        echo_json(commands)
    elif as_yaml:
        import yaml

        echo(yaml.safe_dump(commands, sort_keys=False).rstrip())
    else:
        echo(table(("#", "AT", "BY", "STATE", "WHAT", "WHY"), map(_row, commands)))


def _stacks(job: str, rank: int | None, threads: bool, as_json: bool) -> None:
    from torchloom.client import chosen

    found = chosen.ask("stacks", _PATIENCE, job=job)
    if rank is not None:
        known = [
            number for role in found["roles"] for one in role["stacks"] for number in one["ranks"]
        ]
        if rank not in known:
            raise NotFound("rank", str(rank), map(str, sorted(known)))
        found = narrowed(found, rank)
    if as_json:
        echo_json(found)
    else:
        for line in stack_lines(found, threads):
            echo(fitted(line))


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    what = "; ".join(in_words(one))
    why = one["outcome"] or one["reason"]
    return str(one["number"]), one["asked_at"][:19], one["author"], one["state"], what, why


def narrowed(found: dict[str, Any], rank: int) -> dict[str, Any]:
    """Return the reply reduced to one rank; the verdict stays that of all ranks."""
    roles = []
    for role in found["roles"]:
        stacks = [{**one, "ranks": [rank]} for one in role["stacks"] if rank in one["ranks"]]
        ranks = [one for one in role["ranks"] if one["rank"] == rank]
        roles.append({**role, "stacks": stacks, "ranks": ranks})
    return {**found, "roles": roles}


def stack_lines(found: dict[str, Any], all_threads: bool) -> Iterator[str]:
    """Yield the reply as lines of text."""
    if found["taken"] == "kept":
        yield (
            f"the job has ended; these stacks were taken at {found['time']}"
            if found["roles"]
            else "the job has ended, and no stacks were stored"
        )
    elif not found["roles"]:
        yield "the job has no ranks yet: stacks can be taken once they have started"
    for role in found["roles"]:
        yield printable(f"{role['role']}: {role['verdict']['words']}")
        if all_threads:
            yield from _by_rank(role["ranks"])
        else:
            yield from _by_stack(role)


def fitted(line: str) -> str:
    """Return a line for the terminal: sentences are wrapped, frames are cut."""
    if line.startswith(" ") or not sys.stdout.isatty():
        return clip(line)
    import shutil
    import textwrap

    room = shutil.get_terminal_size((80, 24)).columns
    parts = textwrap.wrap(line, room, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(parts)


def _by_stack(role: dict[str, Any]) -> Iterator[str]:
    ranks = {one["rank"]: one for one in role["ranks"]}
    for stack in role["stacks"]:
        yield ""
        yield from _heads(stack["ranks"], ranks)
        text = _text(ranks.get(stack["ranks"][0]))
        for at, frame in enumerate(stack["frames"]):
            yield printable(f"    {frame}{f'  {text}' if text and at == 0 else ''}")
        if not stack["frames"]:
            yield f"    {_why(ranks.get(stack['ranks'][0]))}"


def _heads(numbered: list[int], ranks: dict[int, dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each group of ranks of one stack that are in the same state."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(numbered):
        groups.setdefault(_state(ranks[rank]) if rank in ranks else "", []).append(rank)
    for state, group in groups.items():
        steps = {ranks[rank]["step"] for rank in group if rank in ranks}
        yield f"{numbers(group)}  {_steps(steps)}, {state}" if state else numbers(group)


def _by_rank(ranks: Iterable[dict[str, Any]]) -> Iterator[str]:
    for rank in ranks:
        yield ""
        yield f"rank {rank['rank']}  {_about(rank)}"
        for thread in rank["threads"]:
            name = thread["name"] or "unnamed thread"
            yield printable(f"  {name}{' (main)' if thread['main'] else ''}")
            for frame in thread["frames"]:
                place = f"{frame['function']} ({frame['file']}:{frame['line']})"
                yield printable(f"    {place}  {frame['text']}".rstrip())
        if not rank["threads"]:
            yield f"    {_why(rank)}"


def _about(rank: dict[str, Any]) -> str:
    return f"{_steps({rank['step']})}, {_state(rank)}"


def _steps(steps: set[int | None]) -> str:
    known = sorted(step for step in steps if step is not None)
    if not known:
        return "no step yet"
    return f"step {known[0]}" if known[0] == known[-1] else f"steps {known[0]}-{known[-1]}"


def _state(rank: dict[str, Any]) -> str:
    moved = "moving" if rank["moved"] else "has not moved"
    return f"{rank['kind']}, {moved}" + (f", by {rank['source']}" if rank["source"] else "")


def _text(rank: dict[str, Any] | None) -> str:
    threads = rank["threads"] if rank else []
    main = next((one for one in threads if one["main"]), None)
    return str(main["frames"][0]["text"]) if main and main["frames"] else ""


def _why(rank: dict[str, Any] | None) -> str:
    return printable(f"no stack: {rank['note'] or 'not a Python process'}") if rank else ""
