"""What runs the pages reads them as their readers do, and sees what is untrue."""

from pathlib import Path

import pytest

from . import output
from .page import Malformed, blocks, commands, is_part_of, needs, patched
from .run import Untrue, looks, run_block
from .world import World

PAGE = """<!-- needs: slurm, s3 -->
# A page

```console
$ loom ls
JOB
$ loom run \\
>   -n 2
```

!!! note
    ```python title="train.py"
    if True:
        pass
    ```

<!-- not run: it asks another machine -->
```console refused
$ ssh far
```

```text
a drawing
```
"""


@pytest.fixture
def place(tmp_path: Path) -> World:
    """Give a place with a shell and nothing else."""
    (tmp_path / "ada/project").mkdir(parents=True)
    (tmp_path / "variables").touch()
    (tmp_path / "folder").write_text(f"{tmp_path}/ada/project\n")
    return World(tmp_path, {"PATH": "/usr/bin:/bin", "PAGE_SHELL": str(tmp_path)}, None)


def run(text: str, place: World) -> None:
    for block in blocks(text):
        run_block(block, place, patience=0)


def test_blocks_are_found_with_what_is_said_of_them() -> None:
    found = blocks(PAGE)

    assert needs(PAGE) == ("slurm", "s3")
    assert [(b.line, b.language, b.title, b.words, b.not_run) for b in found] == [
        (4, "console", None, (), None),
        (12, "python", "train.py", (), None),
        (18, "console", None, ("refused",), "it asks another machine"),
        (22, "text", None, (), None),
    ]
    assert found[1].body == "if True:\n    pass"


def test_a_continued_line_is_one_command() -> None:
    typed = list(commands(blocks(PAGE)[0]))

    assert [(c.line, c.words.split(), c.expected) for c in typed] == [
        (5, ["loom", "ls"], ["JOB"]),
        (7, ["loom", "run", "-n", "2"], []),
    ]


def test_a_block_without_end_or_prompt_is_refused() -> None:
    with pytest.raises(Malformed, match="line 2: the block has no end"):
        blocks("# A\n```console\n$ ls\n")
    with pytest.raises(Malformed, match="begins with"):
        list(commands(blocks("```console\nls\n```")[0]))


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("left-r0v9349h0n9rl  RUNNING  12  1m 3s", "left-twqhrj9gf7x54 RUNNING 7 59s"),
        ("lr 0.1 -> 0.01 at step 4, acked in 6 ms", "lr 0.1 -> 0.01 at step 977, acked in 1.2 s"),
        ("step 10 loss 0.6489 acc=91.2%", "step   10  loss 1.5e-03 acc=8%"),
        ("2026-11-15T16:23:49 pid 12, up 3s", "2027-01-02T03:04:05 pid 99999, up 1h2m"),
        ("- id: acaa878c77214368", "- id: 01234567ab"),
        ("a\n...\nb", "a\nb"),
        ("a\n...\nb", "a\n1\n2\nb"),
        ("...", ""),
        ("", ""),
        ("saved ... to ckpt", "saved 3 files (1.2 MB) to ckpt"),
    ],
)
def test_what_differs_from_run_to_run_may_differ(shown: str, printed: str) -> None:
    assert output.matches(shown.splitlines(), printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("left-r0v9349h0n9rl  RUNNING", "right-r0v9349h0n9rl  RUNNING"),
        ("left  RUNNING  12", "left  FAILED  12"),
        ("lr 0.1 -> 0.01 at step 4", "lr 0.1 -> 0.02 at step 4"),
        ("on ranks 0-1", "on ranks 0-2"),
        ("a\nb", "a"),
        ("a", "a\nb"),
        ("", "a"),
        ("a.c", "abc"),
    ],
)
def test_what_must_be_as_shown_is_compared(shown: str, printed: str) -> None:
    assert not output.matches(shown.splitlines(), printed)


def test_the_first_line_that_differs_is_named() -> None:
    assert output.first_difference(["a", "b"], "a\nc\n") == "shown:   b\nprinted: c"
    assert output.first_difference(["a", "b"], "a\n") == "shown:   b\nprinted: (the end)"
    assert "more lines" in output.first_difference(["a"], "a\nb\n")


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ("loom: a-1 COMPLETED after 8s\nID  STATE  AGE  TOOK\na-1  COMPLETED  20s  8s", ""),
        ("loom: a-1 COMPLETED after 59s\nID  STATE  AGE  TOOK\na-1  COMPLETED  2m  1m", ""),
        ("ID  STATE  AGE\na-1  RUNNING  9s\nID  STATE  AGE\na-1  RUNNING  3s", ""),  # resumed
        (
            "loom: a-1 FAILED after 8s\nID  STATE  AGE  TOOK\na-1  FAILED  20s  19s",
            "took 8 s, then 19",
        ),
        ("loom: a-1 FAILED after 1m 3s\nJOB  STATE  AGE\na-1  FAILED  2s", "is younger than"),
        ("ID  STATE  AGE\na-1  FAILED  9s\nID  STATE  AGE\na-1  FAILED  3s", "gets younger: 9 s"),
    ],
)
def test_times_that_contradict_each_other_are_seen(lines: str, fault: str) -> None:
    found = output.contradictions(enumerate(lines.splitlines(), 1))

    assert fault in "".join(found) if fault else not found


def test_only_what_changes_nothing_is_typed_again() -> None:
    assert all(map(looks, ["loom ls", "loom set left", "loom show a | grep x", "cat a"]))
    acts = ["loom set left lr=1", "loom set left --undo", "loom run a", "cat a > b", "python a.py"]
    assert not any(map(looks, acts))


def test_a_diff_is_applied_where_it_fits_once() -> None:
    text = "one\ntwo\nthree\n"

    assert patched(text, " one\n-two\n+2\n...\n three\n+four") == "one\n2\nthree\nfour\n"
    with pytest.raises(Malformed, match="fits 0 places"):
        patched(text, "-five\n+5")


def test_a_part_of_a_file_is_lines_that_follow_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a\nif b:\n    c\n    d\n")

    assert is_part_of(tmp_path / "a.py", "c\nd\n")
    assert not is_part_of(tmp_path / "a.py", "a\nc\n")


def test_a_shell_keeps_its_variables_and_its_folder(place: World) -> None:
    run("```console\n$ export A=1\n$ mkdir b && cd b\n$ echo $A $(basename $PWD)\n1 b\n```", place)


def test_files_are_written_and_changed_for_what_follows(place: World) -> None:
    run('```yaml title="a/job.yaml"\nn: 1\n```\n', place)
    run('```diff title="a/job.yaml"\n-n: 1\n+n: 2\n```\n', place)
    run("```console\n$ cat a/job.yaml\nn: 2\n```\n", place)


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ("```console\n$ echo a\nb\n```", "shown:   b\nprinted: a"),
        ("```console\n$ echo a\n```", "more lines"),
        ("```console\n$ cat absent\n...\n```", "it exits with 1"),
        ("```console refused\n$ echo a\na\n```", "it exits with 0"),
        ("```python\nraise SystemExit(3)\n```", "the script exits with"),
        ('```python title="examples/pytorch/train_ddp.py"\nnot there\n```', "no part of"),
        ("```yaml\na: [\n```", "expected the node content"),
        ("```json\n{\n```", "Expecting property name"),
        ("```bash\nls\n```", "no test runs a block of the kind `bash`"),
    ],
)
def test_an_untrue_block_is_seen(page: str, why: str, place: World) -> None:
    with pytest.raises((Untrue, ValueError), match=why):
        run(page, place)


def test_what_is_not_run_is_printed(place: World, capsys: pytest.CaptureFixture[str]) -> None:
    run("<!-- not run: it asks another machine -->\n\n```console\n$ exit 1\n```", place)

    assert capsys.readouterr().out == "line 3: not run: it asks another machine\n"
