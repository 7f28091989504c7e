"""Edits of a program's set-up: the run begins, wraps the model, tracks state, deals the data."""

import ast
from collections.abc import Iterable

from torchloom.cli.convert.draft import ConversionDraft
from torchloom.cli.convert.loops import BY_HAND
from torchloom.cli.convert.parts import NO_NUMBERS, PLACES, LoaderPart
from torchloom.cli.convert.program import Scope, names_in
from torchloom.cli.convert.source import NotConvertible, first_line, last_line

_EVERY_SECONDS = 600
_SHARED_CALLS = ("torch.distributed.broadcast", "torch.distributed.all_reduce")
_GROUP_CALLS = ("torch.distributed.new_group", "torch.distributed.init_device_mesh")


class SetupEdits:
    """Writes what comes before the loop."""

    def __init__(self, draft: ConversionDraft) -> None:
        self._draft = draft
        self._source = draft.source
        self._edits = draft.edits
        self._parts = draft.parts
        self._loop = draft.loop

    def write_loader(self) -> None:
        """Make the loader the run's, or note why it stays."""
        draft, name = self._draft, self._draft.steps.loader
        if not name:
            return
        part, why = self._parts.loader(name)
        if part is None:
            self._keep_loader(name, why)
            return
        draft.owned = part
        self._edits.replace_node(part.call.func, f"{draft.run}.loader")
        self._write_arguments(part)
        draft.use(self._source.scope(part.call), self._source.statement(part.call))
        for each in part.samplers:
            if not self._is_read_elsewhere(part):
                self._edits.delete(each)
        how = "consecutive ones to the ranks" if part.shuffle == "False" else "in its own order"
        text = f"run.loader deals each sample once per epoch, {how}"
        draft.note(part.call, f"{text}: the losses of single batches differ from before")

    def _keep_loader(self, name: str, why: str) -> None:
        """Note that a loader stays; refuse one whose end of an epoch cannot be known."""
        draft, loop = self._draft, self._loop
        needs_length = bool(loop.epilogue) or (
            loop.epoch is not None and draft.is_read(draft.steps.index)
        )
        if needs_length and why == NO_NUMBERS:
            text = f"{name} has no length, so the end of an epoch is not known"
            raise NotConvertible(loop.step, f"{text}: {BY_HAND}")
        more = f", and needs a length: len({name})" if needs_length else ""
        text = f"{name} stays as it is{more}, since {why}"
        draft.note(
            loop.step, f"{text}; a resumed run reads its earlier batches again and drops them"
        )

    def _write_arguments(self, part: LoaderPart) -> None:
        """Take out what the run decides itself, and write `shuffle` where its default differs."""
        named = {each.arg for each in part.call.keywords}
        dropped = {"sampler", "generator"} | ({"shuffle"} if "sampler" in named else set())
        every: list[ast.expr | ast.keyword] = [*part.call.args, *part.call.keywords]
        every.sort(key=lambda each: (each.lineno, each.col_offset))
        end = kept_end = self._source.span(every[0])[1]
        for each in every[1:]:
            before, end = end, self._source.span(each)[1]
            if not isinstance(each, ast.keyword) or each.arg not in dropped:
                kept_end = end
            elif self._source.is_alone(each):
                self._edits.delete_lines(each.lineno, last_line(each))
            else:
                self._edits.replace(before, end, "")
        is_written = len(part.call.args) > 2 or "shuffle" in named - dropped
        if part.shuffle and not is_written:
            self._edits.replace(kept_end, kept_end, f", shuffle={part.shuffle}")

    def _is_read_elsewhere(self, part: LoaderPart) -> bool:
        """Tell whether a sampler is read by more than the loader and `set_epoch`."""
        ours = [part.call, *part.samplers, *map(self._draft.around, self._draft.epoch_calls())]
        inside = {id(node) for each in ours for node in ast.walk(each)}
        return any(id(node) not in inside for node in self._draft.program.loads(part.sampler))

    def write_model(self) -> None:
        """Have the run wrap the model, in the place of DDP if the program has it."""
        draft, part = self._draft, self._parts.model
        if part.ddp is None:
            after = part.after
            at = last_line(after) + 1 if after else self._source.lead(self._loop.outermost)
            indentation = self._source.indentation(after) if after else draft.outer
            self._edits.insert_lines(
                at, indentation, f"{part.name} = {draft.run}.wrap({part.name})"
            )
            draft.use(part.scope, after or self._loop.outermost)
            return
        segment = self._source.segment
        words = [segment(part.ddp.args[0])]
        words += [segment(each) for each in part.ddp.keywords if each.arg not in PLACES]
        self._edits.replace_node(part.ddp, f"{draft.run}.wrap({', '.join(words)})")
        draft.use(part.scope, part.condition or self._source.statement(part.ddp))
        if part.condition is not None:
            self._unwind(part.condition)

    def _unwind(self, node: ast.If) -> None:
        """Take an `if` away from around its body."""
        for each in node.body:
            if not self._source.owns_its_lines(each) or each.lineno == node.lineno:
                raise NotConvertible(each, "write the body of this `if` on lines of its own")
        begin, end = self._source.lead(node.body[0]), last_line(node.body[-1])
        self._edits.delete_lines(first_line(node), begin - 1)
        self._edits.shift(begin, end, self._source.unit(node, node.body[0]), -1)
        if node.orelse:
            self._edits.delete_lines(end + 1, last_line(node.orelse[-1]))

    def write_resume(self) -> None:
        """Take out what the program loads to continue; have the run save in its place."""
        draft, resume = self._draft, self._parts.resume
        if resume is None:
            text = (
                "nothing is saved for `loom resume` yet: add run.checkpointing(every_n_steps=...)"
            )
            draft.note(self._loop.outermost, text)
            return
        inside = set(ast.walk(resume.block))
        for name in sorted(resume.names):
            stores = draft.program.stores(name, self._loop.scope)
            if all(node in inside for node in stores):
                why = f"{name} is set in this block alone, and run.steps resumes by itself"
                raise NotConvertible(resume.block, f"{why}: set it before, and remove the block")
        self._edits.delete(resume.block)
        text = "run.steps resumes by itself, so what the program loaded here is left out"
        draft.note(resume.block, text)
        call = f"{draft.run}.checkpointing({self._interval()})"
        self._edits.insert_lines(self._source.lead(self._loop.outermost), draft.outer, call)

    def _interval(self) -> str:
        """Return how often the run saves: as often as the program does, if that can be read."""
        epilogue = {node for each in self._loop.epilogue for node in ast.walk(each)}
        for call in self._saves():
            tests = [n.test for n in self._source.ancestors(call) if isinstance(n, ast.If)]
            every = next(filter(None, map(self._remainder, tests)), "")
            if call in epilogue:
                every = f"{every} * {self._draft.length()}" if every else self._draft.length()
            if every:
                return f"every_n_steps={every}"
        return f"every_n_seconds={_EVERY_SECONDS}"

    def _saves(self) -> list[ast.Call]:
        """Return the calls by which the loop writes a file of its own."""
        program = self._draft.program
        saves = (call for call in program.calls if program.dotted(call.func) == "torch.save")
        return [call for call in saves if self._draft.is_in_loop(call)]

    def _remainder(self, test: ast.expr) -> str:
        """Return K of a condition such as `step % K == 0`."""
        draft = self._draft
        counted = {*draft.count.counters, draft.steps.index, draft.epoch_name} - {""}
        for node in ast.walk(test):
            is_remainder = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
            if isinstance(node, ast.BinOp) and is_remainder and names_in(node.left) & counted:
                return self._source.segment(node.right)
        return ""

    def write_tracked(self) -> None:
        """Have the run carry what else a training consists of."""
        draft, parts = self._draft, self._parts
        names = [parts.optimizer, *parts.schedulers, parts.scaler, *parts.averages()]
        names += draft.checks.generators + draft.checks.objects
        words = ", ".join(f"{name}={name}" for name in names if name)
        line = self._source.lead(self._loop.outermost)
        self._edits.insert_lines(line, draft.outer, f"{draft.run}.track({words})")
        draft.use(self._loop.scope, self._loop.outermost)
        if draft.prologue:
            self._edits.insert_lines(line, draft.outer, f"{draft.epoch_name} = -1")

    def write_init(self, project: str) -> None:
        """Have the run begin before it is used, once for all functions that the module calls."""
        draft = self._draft
        scopes = {id(scope): scope for scope, _ in draft.uses}
        if id(self._source.tree) in scopes:
            scopes = {id(self._source.tree): self._source.tree}
        for scope in scopes.values():
            at = self._common(scope, [statement for one, statement in draft.uses if one is scope])
            line = f'{draft.run} = {draft.module}.init(project="{project}")'
            self._edits.insert_first(self._source.lead(at), self._source.indentation(at), line)

    def _common(self, scope: Scope, uses: Iterable[ast.stmt]) -> ast.stmt:
        """Return the first statement with a use, in the innermost block that has all of them."""
        chains = []
        for use in uses:
            above = [use, *(n for n in self._source.ancestors(use) if isinstance(n, ast.stmt))]
            inside = [n for n in above if n is not scope and self._source.scope(n) is scope]
            chains.append(inside[::-1])  # from the scope's own statements to the use
        depth = 0
        while (
            all(len(chain) > depth + 1 for chain in chains)
            and len({id(chain[depth]) for chain in chains}) == 1
            and len({id(self._source.block(chain[depth + 1])) for chain in chains}) == 1
        ):
            depth += 1
        return min((chain[depth] for chain in chains), key=lambda each: each.lineno)

    def note_rest(self) -> None:
        """Note what else of the set-up its author has to know."""
        draft = self._draft
        for call in draft.program.calls:
            whole = draft.program.dotted(call.func)
            is_early = call.lineno < self._loop.outermost.lineno
            is_here = self._source.scope(call) in (self._source.tree, self._loop.scope)
            if whole == "torch.compile":
                draft.note(call, "recovery of a compiled model has not been tried")
            elif whole in _GROUP_CALLS:
                draft.note(call, "with groups of its own a program is restarted as a whole")
            elif whole in _SHARED_CALLS and is_early and is_here:
                draft.note(call, "after this a lost rank means a restart; use run.broadcast")
        for call in self._saves():
            draft.note(call, "the program still writes this file; the run does not read it")
