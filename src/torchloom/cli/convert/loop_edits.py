"""Edits of a training loop: one loop over all steps, whose body is `with step:`."""

import ast
from collections.abc import Sequence

from torchloom.cli.convert.draft import ConversionDraft
from torchloom.cli.convert.program import is_store, names_in, target_name
from torchloom.cli.convert.source import Block, first_line, last_line


class LoopEdits:
    """Writes the loop anew."""

    def __init__(self, draft: ConversionDraft) -> None:
        self._draft = draft
        self._source = draft.source
        self._edits = draft.edits
        self._loop = draft.loop
        self._checks = draft.checks

    def write(self) -> None:
        """Write the whole loop."""
        self._take_out()
        self._write_ahead()
        self._write_headers()
        self._write_prologue()
        self._write_body()
        self._write_epilogue()
        self._note_rest()

    def _take_out(self) -> None:
        """Delete what the run does itself: the epoch of samplers, and the end of the loop."""
        self._edits.delete(*self._draft.gone)
        if (end := self._draft.steps.end) is not None:
            self._edits.delete_lines(self._source.lead(end), first_line(end))

    def _write_ahead(self) -> None:
        """Have a step fetch the batch that it uses, where the program fetched the next one."""
        ahead = self._checks.prefetch
        if ahead is None:
            return
        self._edits.delete(ahead.first, ahead.again)
        deeper = "" if self._loop.epoch is not None else self._draft.unit
        indentation = self._source.indentation(ahead.before) + deeper
        line = self._source.lead(ahead.before)
        self._edits.insert_lines(line, indentation, self._source.segment(ahead.again))
        self._draft.note(ahead.again, "the batch is fetched by the step that uses it, not ahead")

    def _write_headers(self) -> None:
        draft, loop, epochs = self._draft, self._loop, ""
        if loop.epoch is not None:
            epochs = f", epochs={draft.epochs()[0]}"
            begin = self._source.span(loop.step)[0]
            self._edits.replace(begin, self._source.header_end(loop.step), f"with {draft.step}")
        text = f"for {draft.step} in {draft.run}.steps({draft.steps.text}{epochs})"
        begin = self._source.span(loop.outermost)[0]
        self._edits.replace(begin, self._source.header_end(loop.outermost), text)
        if draft.steps.bar is not None:
            draft.note(loop.step, "the progress bar is left out: torchLoom shows the progress")

    def _write_prologue(self) -> None:
        """Have the beginning of an epoch run in its first step, or the first of a new process."""
        draft, kept = self._draft, self._draft.prologue
        if self._loop.epoch is None:
            return
        name, value = draft.epoch_name, draft.epoch_value()
        if kept:
            at = self._source.lead(kept[0])
            lines = f"if {name} != {value}:", f"{draft.unit}{name} = {value}"
            self._edits.insert_lines(at, draft.inner, *lines)
            self._edits.shift(at, last_line(kept[-1]), draft.unit)
        elif draft.is_read(name):
            line = first_line(self._loop.step)
            self._edits.insert_lines(line, draft.inner, f"{name} = {value}")

    def _write_body(self) -> None:
        draft, loop, body = self._draft, self._loop, self._loop.step.body
        left_out = self._left_out()
        tail = [each for each in body[self._checks.last + 1 :] if each not in left_out]
        is_split = self._checks.waits(*tail)
        at, deep = self._source.lead(body[0]), self._source.indentation(body[0])
        if loop.epoch is None:
            deep = draft.inner + draft.unit
            self._edits.insert_lines(at, draft.inner, f"with {draft.step}:")
            end = self._source.lead(tail[0]) - 1 if is_split else self._source.trail(loop.step)
            self._edits.shift(at, end, draft.unit)
        self._edits.insert_lines(at, deep, *self._first_lines())
        for counter in draft.count.counters.values():
            if not self._reads(counter.name, counter.increment.lineno):
                self._edits.delete(counter.increment)
        self._write_log(body[self._checks.last], deep)
        if is_split:
            self._guard(tail)

    def _left_out(self) -> list[ast.stmt]:
        """Return statements of the body that are taken out, or need not be in the step."""
        increments = [each.increment for each in self._draft.count.counters.values()]
        ahead = self._checks.prefetch
        return [*increments, *self._draft.gone, *([ahead.again] if ahead else [])]

    def _first_lines(self) -> list[str]:
        """Return what a step begins with: its batch, and variables that follow from its number."""
        draft, steps = self._draft, self._draft.steps
        lines = [f"{draft.parts.model.name}.train()"] if self._sets_mode() else []
        if steps.batch:
            lines.append(f"{steps.batch} = {draft.step}.batch")
        if draft.is_read(steps.index):
            lines.append(f"{steps.index} = {draft.index_value()}")
        for counter in draft.count.counters.values():
            if self._reads(counter.name):
                lines.append(f"{counter.name} = {counter.value(f'{draft.step}.number')}")
        return lines

    def _sets_mode(self) -> bool:
        """Tell whether a step has to switch to training: an evaluation may have been left early."""
        draft, loop = self._draft, self._loop
        others = [*loop.prologue, *loop.epilogue]
        others += [each for each in loop.step.body if not self._checks.trains([each])]
        switches = self._checks.evaluates(*others)
        if draft.modes and not draft.prologue:
            self._edits.delete(*draft.modes)
            if not switches:
                line, call = self._source.lead(loop.outermost), f"{draft.parts.model.name}.train()"
                self._edits.insert_lines(line, draft.outer, call)
            return switches
        if draft.modes or any(map(draft.is_mode, loop.step.body)):
            return False
        return switches and self._checks.waits(*others)

    def _reads(self, name: str, line: int = 0) -> bool:
        """Tell whether a counter is read behind a line of the loop, but for where it ends it."""
        step, end = self._loop.step, self._draft.steps.end
        ignored: list[ast.AST] = [step.test] if isinstance(step, ast.While) else []
        ignored += [end] if end is not None else []
        inside = {node for each in ignored for node in ast.walk(each)}
        begin = max(line, self._loop.outermost.lineno)
        return any(
            node.lineno > begin or self._source.scope(node) is not self._loop.scope
            for node in self._draft.program.loads(name)
            if node not in inside
        )

    def _guard(self, tail: Block) -> None:
        """Have what follows the training run for a step that is done, and wait in a section."""
        draft, at = self._draft, self._source.lead(tail[0])
        if self._loop.epoch is not None:
            self._edits.insert_lines(at, draft.inner, f"if {draft.step}.is_done:")
        else:
            lines = f"if not {draft.step}.is_done:", f"{draft.unit}continue"
            self._edits.insert_lines(at, draft.inner, *lines)
        self._section(tail)

    def _section(self, block: Sequence[ast.stmt]) -> None:
        """Put what waits for other ranks, and what follows it, into a section."""
        waiting = next((at for at, node in enumerate(block) if self._checks.waits(node)), None)
        if waiting is None:
            return
        inside = list(block[waiting:])
        for node in inside:
            if self._checks.schedules(node):
                self._checks.refuse_moved(inside[: inside.index(node)], node)
        inside = self._under_its_test(inside)
        at, indentation = self._source.lead(inside[0]), self._source.indentation(inside[0])
        indentation += self._draft.unit * self._edits.levels(first_line(inside[0]))
        line = f'with {self._draft.run}.section("evaluation"):'
        self._edits.insert_lines(at, indentation, line)
        self._edits.shift(at, last_line(inside[-1]), self._draft.unit)

    def _under_its_test(self, block: Block) -> Block:
        """Return the body of an `if` that is all there is, so that it is tested outside."""
        only = block[0]
        if not isinstance(only, ast.If) or only.orelse or len(block) > 1:
            return block
        is_below = only.body[0].lineno != only.lineno
        return only.body if is_below and not self._checks.waits(only.test) else block

    def _write_log(self, last: ast.stmt, indentation: str) -> None:
        """Log the loss behind the last statement that trains."""
        names = {_loss(call) for call in self._draft.parts.losses()} - {""}
        deletes = (each for each in self._draft.parts.inside if isinstance(each, ast.Delete))
        names -= {node.id for each in deletes for node in ast.walk(each) if is_store(node)}
        if len(names) != 1:
            text = f"which variable is the loss is not known: log it by {self._draft.step}.log"
            self._draft.note(last, f"{text}(loss=...)")
            return
        name = names.pop()
        text = f"{self._draft.step}.log(loss={name}{self._share(name)})"
        self._edits.insert_lines(last_line(last) + 1, indentation, text)

    def _share(self, name: str) -> str:
        """Return what undoes a division of the loss by the number of parts of a batch."""
        for node in self._draft.parts.inside:
            divisor: ast.expr | None = None
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
                is_ours = isinstance(node.target, ast.Name) and node.target.id == name
                divisor = node.value if is_ours else None
            elif isinstance(node, ast.Assign) and target_name(node) == name:
                value = node.value
                if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
                    divisor = value.right
            if divisor is not None and self._counts_parts(divisor):
                return f" * {self._draft.operand(divisor)}"
        return ""

    def _counts_parts(self, divisor: ast.expr) -> bool:
        """Tell whether the loop counts to this number, or takes every such step."""
        counted: list[ast.expr] = []
        for node in self._draft.parts.inside:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                counted.append(node.right)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "range":
                counted += node.args
        return any(ast.dump(each) == ast.dump(divisor) for each in counted)

    def _write_epilogue(self) -> None:
        """Have the end of an epoch run behind its last step."""
        draft, block = self._draft, self._loop.epilogue
        if not block:
            return
        at = self._source.lead(block[0])
        line = f"if {draft.step}.is_done and {draft.epoch_end()}:"
        self._edits.insert_lines(at, draft.inner, line)
        self._edits.shift(at, last_line(block[-1]), draft.unit)
        waiting = next((n for n, each in enumerate(block) if self._checks.waits(each)), len(block))
        moved = [each for each in block[waiting:] if self._checks.schedules(each)]
        for each in moved:
            before = block[: block.index(each)]
            self._checks.refuse_moved([one for one in before if one not in moved], each)
            self._edits.delete(each)
            self._edits.insert_lines(at, draft.inner + draft.unit, *self._source.lines_of(each))
        self._section([each for each in block if each not in moved])

    def _note_rest(self) -> None:
        draft = self._draft
        if not draft.steps.loader:
            text = "random numbers of a step (dropout, torch.rand) now follow from its number"
            draft.note(self._loop.step, f"{text}, so they differ from before")
            return
        updates = [node for node in draft.parts.inside if self._is_conditional(node)]
        if updates:
            text = "gradients are added up over several steps: a lost rank then restarts all"
            draft.note(updates[0], text)

    def _is_conditional(self, node: ast.AST) -> bool:
        """Tell whether this is a step of the optimizer that not every step of the loop does."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        if node.func.attr != "step" or self._draft.parts.optimizer not in names_in(node):
            return False
        for each in self._source.ancestors(node):
            if isinstance(each, ast.If) or each is self._loop.step:
                return isinstance(each, ast.If)
        return False


def _loss(call: ast.Call) -> str:
    """Return the variable of which gradients are computed."""
    value: ast.expr | None = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(value, ast.Name) and not call.args:
        return value.id
    if isinstance(value, ast.BinOp) and isinstance(value.left, ast.Name):
        return value.left.id
    if isinstance(value, ast.Call):  # scaler.scale(loss).backward()
        found = set().union(*(names_in(each) for each in value.args)) if value.args else set()
        first = value.args[0] if value.args else None
        if isinstance(first, ast.BinOp) and isinstance(first.left, ast.Name):
            return first.left.id
        return found.pop() if len(found) == 1 else ""
    return ""
