"""Find where runs differ: nested values as flat names, one row a name, one value a run.

Which of several values is the best depends on the name: `goal_of` knows the usual ones.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

Goal: TypeAlias = Literal["min", "max"]

# Words of names, as they are logged; the last one that is known decides.
_GOALS: Mapping[str, Goal] = {
    **dict.fromkeys(
        (
            *("loss", "losses", "nll", "error", "err", "errors", "perplexity", "ppl", "bpb", "bpc"),
            *("mse", "rmse", "mae", "mape", "smape", "rmsle", "wer", "cer", "eer", "ter"),
            *("crossentropy", "xent", "bce", "kl", "kld", "divergence", "brier", "ece"),
            *("fid", "lpips", "regret", "distance", "cost", "mismatch", "violations"),
            *("time", "seconds", "duration", "latency", "ms"),
        ),
        "min",
    ),
    **dict.fromkeys(
        (
            *("acc", "accuracy", "top", "hits", "precision", "recall", "f", "fbeta", "auc"),
            *("auroc", "auprc", "roc", "ap", "map", "ndcg", "mrr", "bleu", "rouge", "meteor"),
            *("chrf", "cider", "spice", "comet", "em", "iou", "miou", "dice", "jaccard", "psnr"),
            *("ssim", "r", "mcc", "kappa", "correlation", "pearson", "spearman", "similarity"),
            *("reward", "rewards", "return", "returns", "score", "win", "wins", "elo", "success"),
            *("specificity", "sensitivity", "likelihood", "throughput", "mfu", "speed"),
        ),
        "max",
    ),
}
_BOTH: Mapping[str, Goal] = {  # what two words make of each other
    "cross entropy": "min",
    "bits per": "min",
    "per byte": "min",
    "per second": "max",
    "per sec": "max",
    "per s": "max",
    "log likelihood": "max",
    "negative log": "min",
    "win rate": "max",
    "error rate": "min",
}
_GLUED: Mapping[str, Goal] = {"loss": "min", "error": "min", "accuracy": "max", "perplexity": "min"}
_WORD = re.compile(r"[A-Za-z]+")
_HUMP = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # of a word such as trainLoss
_RATE = re.compile(r"/ ?s(ec(ond)?)?$")
_WEAK = frozenset({"score", "success"})  # ignored beside another known word, as in fid_score
_NO_RESULT = frozenset({"scale", "weight", "coef", "coefficient"})  # loss_scale is no loss
_NUMBERED = frozenset({"f", "r", "top"})  # are one only with a number: f1, r2, top5


class RunDifference(NamedTuple):
    """A name whose value is not the same in all runs; a run may have none."""

    name: str
    values: tuple[Any, ...]
    missing: tuple[bool, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return {
            "name": self.name,
            "values": list(self.values),
            "missing": list(self.missing),
        }


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested mappings under its dotted name; lists are values."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{name}.")
        else:
            yield name, value


def differences(
    runs: Sequence[Mapping[str, Any]], names: Iterable[str] | None = None
) -> list[RunDifference]:
    """Return the names whose values differ, or those asked for, by name."""
    columns = [dict(flat(run)) for run in runs]
    wanted = sorted({name for column in columns for name in column}) if names is None else names
    rows = (_row(name, columns) for name in wanted)
    return [row for row in rows if names is not None or not _is_same(row)]


def shared(runs: Sequence[Mapping[str, Any]]) -> int:
    """Return how many names have one value in all runs."""
    columns = [dict(flat(run)) for run in runs]
    names = {name for column in columns for name in column}
    return sum(_is_same(_row(name, columns)) for name in names)


def winner(values: Sequence[Any], lower: bool) -> int | None:
    """Return which of the numbers is the best; nothing when there are none, or several are."""
    numbers = [
        (value if lower else -value, index)
        for index, value in enumerate(values)
        if is_number(value)
    ]
    if len(numbers) < 2:
        return None
    numbers.sort()
    return numbers[0][1] if numbers[0][0] < numbers[1][0] else None


def is_number(value: Any) -> bool:
    """Tell whether a value can be the best of some: what is not finite cannot."""
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and math.isfinite(value)


def goal_of(name: str, goals: Mapping[str, Any] | None = None) -> Goal | None:
    """Return which way a metric should go: as its run declares, else by its name, if known."""
    goal = (goals or {}).get(name)
    if goal in ("min", "max"):
        return "min" if goal == "min" else "max"
    words = [word.lower() for word in _words(name)]
    if not words or words[-1] in _NO_RESULT:
        return None
    numbered = {word.lower() for word in re.findall(r"([A-Za-z]+)[@_-]?[0-9]", name)}
    found: Goal | None = "max" if _RATE.search(name) else None
    for place, word in enumerate(words):
        pair = f"{words[place - 1]} {word}" if place else ""
        is_one = (word not in _NUMBERED or word in numbered) and not (found and word in _WEAK)
        glued = next((goal for end, goal in _GLUED.items() if word.endswith(end)), None)
        found = _BOTH.get(pair) or (_GOALS.get(word) if is_one else None) or glued or found
    return found


def _words(name: str) -> Iterator[str]:
    """Yield the words of a name; one with humps is several, unless it is known as it is."""
    for word in _WORD.findall(name):
        yield from [word] if word.lower() in _GOALS else _HUMP.findall(word)


def _row(name: str, columns: Sequence[Mapping[str, Any]]) -> RunDifference:
    values = tuple(column.get(name) for column in columns)
    return RunDifference(name, values, tuple(name not in column for column in columns))


def _is_same(row: RunDifference) -> bool:
    first = row.values[0]
    alike = all(type(value) is type(first) and value == first for value in row.values)
    return alike and len(set(row.missing)) == 1
