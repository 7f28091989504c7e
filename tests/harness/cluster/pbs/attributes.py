"""What the options of qsub say: each value by its own grammar, the command line over directives."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..batch.command import Refused
from ..batch.options import BadOption, getopt
from .resources import IllegalList, split
from .words import NOATTR, Rejected, not_done

KNOWN = "a:A:c:C:e:fhIj:J:k:l:m:M:N:o:p:q:r:R:S:u:v:VW:XzP:"
NAME = re.compile(r"[A-Za-z0-9_+.-]{1,236}")
LONGEST_NAME = 236  # letters
ARRAY = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?:%(\d+))?")
PATTERNS: Mapping[str, str] = {
    "c": r"n|s|c|w|c=[1-9]\d*|w=[1-9]\d*",
    "j": r"oe|eo|n",
    "k": r"n|d?(o|e|oe|eo)|(o|e|oe|eo)d",
    "m": r"n|[abej]+",
    "M": r"[^\s,@]+(@[^\s,@]+)?(,[^\s,@]+(@[^\s,@]+)?)*",
    "P": r"[^/\[\]\";:|<>+,?*\s]+",
    "R": r"o|e|oe|eo",
    "r": r"y|n",
    "S": r"/[^\s,@]*(@[^\s,]+)?(,/[^\s,@]*@[^\s,]+)*",
    "o": r"\S.*",
    "e": r"\S.*",
    "A": r".+",
}
W_TAKEN = (
    "depend",
    "block",
    "umask",
    "run_count",
    "sandbox",
    "group_list",
    "max_run_subjobs",
    "tolerate_node_failures",
)
W_NOT_DONE = ("stagein", "stageout", "release_nodes_on_stageout", "interactive", "pwd", "cred")


class Illegal(Exception):
    """A value that qsub itself refuses, by the option's letter."""

    def __init__(self, option: str) -> None:
        super().__init__(option)
        self.text = f"qsub: illegal -{option} value\n"


@dataclass
class Attributes:
    """The options taken so far; directives do not replace what the command line said."""

    values: dict[str, str] = field(default_factory=dict)
    resources: dict[str, str] = field(default_factory=dict)
    extra: dict[str, str] = field(default_factory=dict)  # -W
    _from_line: set[str] = field(default_factory=set)

    def take(self, words: list[str], from_line: bool) -> tuple[list[str], bool]:
        """Take a line of options; return its operands and whether `--` preceded them."""
        parsed = getopt("qsub", words, KNOWN)
        for option, value in parsed.options:
            if option == "l":
                self._take_resources(value, from_line)
            elif option == "W":
                self._take_extra(value, from_line)
            elif from_line or option not in self._from_line:
                self.values[option] = _checked(option, value)
                if from_line:
                    self._from_line.add(option)
        self._check_together()
        return parsed.operands, parsed.dashes

    def _take_resources(self, value: str, from_line: bool) -> None:
        try:
            asked = split(value)
        except IllegalList:
            raise Illegal("l") from None
        for name, text in asked.items():
            if from_line or name not in self.resources:
                self.resources[name] = text

    def _take_extra(self, value: str, from_line: bool) -> None:
        for item in re.split(r",(?=\s*\w+\s*=)", value.strip()):
            name, sign, text = (part.strip() for part in item.partition("="))
            if not sign or not name or not text:
                raise Illegal("W")
            if name in W_NOT_DONE:
                raise not_done("qsub", f"-W {name}")
            if name not in W_TAKEN:
                raise Rejected(NOATTR, f" {name}")
            if not _W_CHECKS.get(name, bool)(text):
                raise Illegal("W")
            if from_line or f"W{name}" not in self._from_line:
                self.extra[name] = text.strip("\"'")
                if from_line:
                    self._from_line.add(f"W{name}")

    def _check_together(self) -> None:
        if self.values.get("r") == "n" and "J" in self.values:
            raise Refused("qsub:  cannot submit non-rerunable Array Job\n" + USAGE, 2)


def understand_date(text: str, now: float) -> float:
    """Return `[[[[CC]YY]MM]DD]hhmm[.SS]` as a time; the past means the next such time."""
    match = re.fullmatch(r"(\d{4}|\d{6}|\d{8}|\d{10}|\d{12})(?:\.(\d{2}))?", text)
    if not match:
        raise Illegal("a")
    digits, here = match[1], time.localtime(now)
    given = {4: "%H%M", 6: "%d%H%M", 8: "%m%d%H%M", 10: "%y%m%d%H%M", 12: "%Y%m%d%H%M"}
    whole = time.strftime("%Y%m%d%H%M", here)
    full = whole[: 12 - len(digits)] + digits if len(digits) < 10 else digits
    try:
        form = given[12] if len(digits) != 10 else given[10]
        at = time.mktime(time.strptime(full, form)) + int(match[2] or 0)
    except ValueError:
        raise Illegal("a") from None
    return at if at > now or len(digits) > 4 else at + 86400


def array(value: str) -> tuple[list[int], int | None]:
    """Return the indices of `X-Y[:Z][%N]` and how many may run side by side."""
    match = ARRAY.fullmatch(value)
    if not match or int(match[1]) >= int(match[2]) or match[3] == "0" or match[4] == "0":
        raise Illegal("J")
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    return list(range(first, last + 1, step)), int(match[4]) if match[4] else None


def variables(value: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what `-v` exports: `NAME` from the environment, `NAME=value`, quotes, backslashes."""
    found = {}
    for item in _comma_parts(value):
        name, sign, text = item.partition("=")
        if not name or (not sign and name not in environ):
            raise Refused("qsub: cannot send environment with the job\n", 1)
        found[name] = _unquoted(text) if sign else environ[name]
    return found


def _comma_parts(value: str) -> list[str]:
    parts, quote, part = [], "", ""
    letters = iter(value)
    for letter in letters:
        if letter == "\\":
            part += letter + next(letters, "")
        elif letter == "," and not quote:
            parts.append(part)
            part = ""
        else:
            if letter in "\"'" and quote in ("", letter):
                quote = "" if quote else letter
            part += letter
    return [*parts, part] if part else parts


def _unquoted(text: str) -> str:
    result, quote = "", ""
    letters = iter(text)
    for letter in letters:
        if letter == "\\":
            result += next(letters, "\\")
        elif letter in "\"'" and quote in ("", letter):
            quote = "" if quote else letter
        else:
            result += letter
    if quote:
        raise Refused("qsub: cannot send environment with the job\n", 1)
    return result


def _checked(option: str, value: str) -> str:
    value = value.strip() if option in "mpc" else value
    if option in "IX":
        raise not_done("qsub", f"-{option}")
    if option == "N" and len(value) > LONGEST_NAME:
        raise Refused("qsub: Job name is too long \n", 2)
    if option == "N" and not NAME.fullmatch(value):
        raise Illegal("N")
    if option == "J":
        array(value)
    if option == "a":
        understand_date(value, time.time())
    if option == "p" and not (re.fullmatch(r"[+-]?\d+", value) and -1024 <= int(value) <= 1023):
        raise Illegal("p")
    if option in PATTERNS and not re.fullmatch(PATTERNS[option], value):
        raise Illegal(option)
    return value


_W_CHECKS: Mapping[str, Callable[[str], object]] = {
    "block": lambda text: text.lower() in ("true", "false"),
    "umask": lambda text: re.fullmatch(r"[0-7]{1,4}", text),
    "run_count": lambda text: re.fullmatch(r"\d+", text),
    "max_run_subjobs": lambda text: re.fullmatch(r"[1-9]\d*", text),
    "tolerate_node_failures": lambda text: text in ("all", "job_start", "none"),
    "sandbox": lambda text: text.upper() == "HOME",
    "depend": lambda text: re.fullmatch(r"[a-z]+:[^\s]+", text),
}
USAGE = """\
usage: qsub [-a date_time] [-A account_string] [-c interval]
\t[-C directive_prefix] [-e path] [-f ] [-h ] [-I [-X]] [-j oe|eo] [-J X-Y[:Z]]
\t[-k keep] [-l resource_list] [-m mail_options] [-M user_list]
\t[-N jobname] [-o path] [-p priority] [-P project] [-q queue] [-r y|n]
\t[-R o|e|oe] [-S path] [-u user_list] [-W otherattributes=value...]
\t[-S path] [-u user_list] [-W otherattributes=value...]
\t[-v variable_list] [-V ] [-z] [script | -- command [arg1 ...]]
       qsub --version
"""
__all__ = ["Attributes", "BadOption", "Illegal", "USAGE", "array", "understand_date", "variables"]
