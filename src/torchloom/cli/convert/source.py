"""A program as text and as a tree, and edits that leave every other character as it is."""

import ast
import difflib
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$")
_BLOCKS = ("body", "orelse", "finalbody", "handlers")
_STARTS = ("STRING", "FSTRING_START", "TSTRING_START")
_ENDS = ("FSTRING_END", "TSTRING_END")
Block = list[ast.stmt]


class NotConvertible(Exception):
    """A line of the program that cannot be converted, and what to do about it."""

    def __init__(self, at: "ast.AST | int", why: str) -> None:
        self.line = at if isinstance(at, int) else int(getattr(at, "lineno", 1))
        self.why = why
        super().__init__(why)


class SourceText:
    """The text of a program with its syntax tree; positions are offsets into the text.

    Raises SyntaxError or ValueError for a text that is no Python.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.lines: list[str] = _LINE.findall(text)
        self.newline = "\r\n" if self.lines and self.lines[0].endswith("\r\n") else "\n"
        self._begins = [0]
        for line in self.lines:
            self._begins.append(self._begins[-1] + len(line))
        self._parents = {
            child: parent
            for parent in ast.walk(self.tree)
            for child in ast.iter_child_nodes(parent)
        }
        self.in_strings = frozenset(_lines_in_strings(text))

    # Positions.

    def begin(self, line: int) -> int:
        """Return where a line begins; the line after the last one begins at the end."""
        return self._begins[min(line, len(self._begins)) - 1]

    def offset(self, line: int, column: int) -> int:
        """Return the position of a place that the tree gives in bytes of UTF-8."""
        text = self.lines[line - 1]
        if not text.isascii():
            column = len(text.encode()[:column].decode())
        return self.begin(line) + column

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where an expression or a statement begins and ends."""
        ends = node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
        return self.offset(node.lineno, node.col_offset), self.offset(*ends)  # type: ignore[attr-defined]

    def segment(self, node: ast.AST) -> str:
        """Return the text of an expression, on one line."""
        begin, end = self.span(node)
        text: str = self.text[begin:end]
        is_long = "\n" in text or "\r" in text
        return ast.unparse(node) if is_long else text

    def indentation(self, node: ast.stmt) -> str:
        """Return the white space before a statement's first line."""
        line = self.lines[first_line(node) - 1]
        return line[: len(line) - len(line.lstrip(" \t\f"))]

    def owns_its_lines(self, node: ast.stmt) -> bool:
        """Tell whether a statement shares no line with another one."""
        begin, end = self.span(node)
        before = self.text[self.begin(first_line(node)) : begin]
        after = self.text[end : self.begin(last_line(node) + 1)].strip()
        is_first = not before.strip() or first_line(node) < node.lineno
        return is_first and (not after or after.startswith("#"))

    def is_alone(self, node: ast.keyword) -> bool:
        """Tell whether an argument with its comma and a comment has lines of its own."""
        begin, end = self.span(node)
        before = self.text[self.begin(node.lineno) : begin]
        after = self.text[end : self.begin(last_line(node) + 1)].partition("#")[0]
        return not before.strip() and after.strip() == ","

    def lead(self, node: ast.stmt) -> int:
        """Return the first line of the comments directly above a statement, or its own."""
        line, comment = first_line(node), f"{self.indentation(node)}#"
        while line > 1 and self.lines[line - 2].startswith(comment):
            line -= 1
        return line

    def trail(self, node: ast.For | ast.While) -> int:
        """Return the last line of a loop, with comments at its end."""
        line, deep = last_line(node), self.indentation(node.body[0])
        while line < len(self.lines) and self.lines[line].startswith(f"{deep}#"):
            line += 1
        return line

    def lines_of(self, node: ast.stmt) -> list[str]:
        """Return the lines of a statement, without its indentation and ends of lines."""
        base = len(self.indentation(node))
        lines = self.lines[first_line(node) - 1 : last_line(node)]
        return [line.rstrip("\r\n")[base:] for line in lines]

    def header_end(self, node: ast.For | ast.While) -> int:
        """Return where the colon of a loop's header is."""
        begin = self.span(node.iter if isinstance(node, ast.For) else node.test)[1]
        return self.text.index(":", begin, self.span(node.body[0])[0])

    # The tree.

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Return the node that holds a node."""
        return self._parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what a node is in, from the inside to the module."""
        while (parent := self._parents.get(node)) is not None:
            yield parent
            node = parent

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the innermost statement that a node is, or is in."""
        while not isinstance(node, ast.stmt):
            node = self._parents[node]
        return node

    def block(self, statement: ast.stmt) -> Block:
        """Return the statements among which a statement is."""
        parent = self._parents[statement]
        for name in _BLOCKS:
            block = getattr(parent, name, [])
            if any(each is statement for each in block):
                found: Block = block
                return found
        raise NotConvertible(statement, "this statement is in a block that is not known here")

    def scope(self, node: ast.AST) -> "ast.Module | ast.FunctionDef | ast.AsyncFunctionDef":
        """Return the function that a node is in, or the module."""
        for each in self.ancestors(node):
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                return each
        return self.tree

    def unit(self, outer: ast.stmt, inner: ast.stmt) -> str:
        """Return by how much a block is indented against its header."""
        deep, less = self.indentation(inner), self.indentation(outer)
        return deep[len(less) :] if deep.startswith(less) and len(deep) > len(less) else "    "


def first_line(node: ast.stmt) -> int:
    """Return the first line of a statement, that of its decorators if it has any."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def last_line(node: ast.AST) -> int:
    """Return the last line of a statement."""
    return int(node.end_lineno)  # type: ignore[attr-defined]


def walk_here(*nodes: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes and what is in them, but nothing of functions and classes defined there."""
    left = list(nodes)
    while left:
        node = left.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            left[:0] = ast.iter_child_nodes(node)


def _lines_in_strings(text: str) -> Iterator[int]:
    """Yield the lines that begin inside of a string: their white space belongs to it."""
    opened: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        if kind in _STARTS:
            opened.append(token.start[0])
        if kind in _ENDS or kind == "STRING":
            yield from range(opened.pop() + 1, token.end[0] + 1)


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str


class SourceEdits:
    """Changes of a text: each names what it replaces, and no two may overlap."""

    def __init__(self, source: SourceText) -> None:
        self._source = source
        self._edits: list[_Edit] = []
        self._levels: dict[int, int] = {}  # by line: how often it is indented further
        self._units: dict[int, str] = {}
        self._deleted: set[int] = set()

    def replace(self, start: int, end: int, text: str) -> None:
        """Replace the characters from `start` to `end`."""
        self._edits.append(_Edit(start, end, text))

    def replace_node(self, node: ast.AST, text: str) -> None:
        """Replace an expression or a statement."""
        self.replace(*self._source.span(node), text)

    def insert_lines(self, line: int, indentation: str, *texts: str) -> None:
        """Insert lines before a line."""
        at = self._source.begin(line)
        newline = self._source.newline
        is_open = at == len(self._source.text) and not self._source.text.endswith(("\n", "\r"))
        lines = "".join(f"{indentation}{text}{newline}" for text in texts)
        self.replace(at, at, f"{newline}{lines.removesuffix(newline)}" if is_open else lines)

    def insert_first(self, line: int, indentation: str, text: str) -> None:
        """Insert a line before all others that are inserted at the same place."""
        at = self._source.begin(line)
        self._edits.insert(0, _Edit(at, at, f"{indentation}{text}{self._source.newline}"))

    def levels(self, line: int) -> int:
        """Return by how many levels a line is indented further."""
        return self._levels.get(line, 0)

    def delete(self, *statements: ast.stmt) -> None:
        """Delete statements with their lines."""
        for each in statements:
            if not self._source.owns_its_lines(each):
                raise NotConvertible(each, "this line has two statements: write them on two lines")
            self.delete_lines(first_line(each), last_line(each))

    def delete_lines(self, first: int, last: int) -> None:
        """Delete whole lines."""
        new = [line for line in range(first, last + 1) if line not in self._deleted]
        self._deleted.update(new)
        for line in new:
            self.replace(self._source.begin(line), self._source.begin(line + 1), "")

    def shift(self, first: int, last: int, unit: str, levels: int = 1) -> None:
        """Indent lines further, or less where `levels` is negative."""
        for line in range(first, last + 1):
            self._levels[line] = self._levels.get(line, 0) + levels
            self._units[line] = unit

    def applied(self) -> str:
        """Return the text after all edits."""
        edits = [edit for edit in self._edits if not self._is_lost(edit)]
        edits += self._indentations()
        text, at = [], 0
        for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
            if edit.start < at:
                raise AssertionError(f"two edits overlap at {edit.start}: {edit.text!r}")
            text += [self._source.text[at : edit.start], edit.text]
            at = edit.end
        return "".join([*text, self._source.text[at:]])

    def _is_lost(self, edit: _Edit) -> bool:
        """Tell whether an edit changes something inside of a line that is deleted."""
        if edit.start == edit.end or not edit.text:
            return False
        return any(
            self._source.begin(line) <= edit.start < self._source.begin(line + 1)
            for line in self._deleted
        )

    def _indentations(self) -> Iterator[_Edit]:
        for line, levels in self._levels.items():
            text, begin = self._source.lines[line - 1], self._source.begin(line)
            if not text.strip() or line in self._deleted or line in self._source.in_strings:
                continue
            unit = self._units[line]
            if levels > 0:
                yield _Edit(begin, begin, unit * levels)
            elif text.startswith(unit * -levels):
                yield _Edit(begin, begin + len(unit) * -levels, "")


@dataclass(frozen=True, slots=True)
class DiffCount:
    """How many lines were added and removed; lines that were only indented count apart."""

    added: int
    removed: int
    indented: int

    def __str__(self) -> str:
        moved = f", {_lines(self.indented)} indented" if self.indented else ""
        return f"{_lines(self.added)} added, {self.removed} removed{moved}"


def _lines(count: int) -> str:
    return f"{count} line{'' if count == 1 else 's'}"


def counted(old: str, new: str) -> DiffCount:
    """Count the lines that differ between two texts."""
    before, after = old.splitlines(), new.splitlines()
    bare = [line.strip() for line in before], [line.strip() for line in after]
    added = removed = indented = 0
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, *bare, autojunk=False).get_opcodes():
        if tag == "equal":
            pairs = zip(before[i1:i2], after[j1:j2], strict=True)
            indented += sum(one != other for one, other in pairs)
        else:
            added, removed = added + j2 - j1, removed + i2 - i1
    return DiffCount(added, removed, indented)


def unified_diff(old: str, new: str, name: str) -> str:
    """Return a unified diff that `patch` and `git apply -p0` take."""
    lines = difflib.unified_diff(_whole_lines(old), _whole_lines(new), name, name)
    return "".join(_ended(line) for line in lines)


def _whole_lines(text: str) -> Sequence[str]:
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
