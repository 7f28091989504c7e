"""Curves in a terminal fit it and show what they must; pictures are drawn, or refused in words."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchloom.history.plot import BadPicture, NoMatplotlib, Panel, in_text, panels, to_file
from torchloom.history.series import MetricSeries

FALLING = MetricSeries.of(
    "loss", [(i, 100.0 + i, 2.0 * math.exp(-i / 20)) for i in range(101)], run="a"
)
REPEATED = MetricSeries(
    "loss",
    tuple(range(10)),
    tuple(100.0 + i if i < 5 else 200.0 + i for i in range(10)),
    tuple([1.0] * 5 + [0.0] * 5),
    replaced=(
        replace(MetricSeries.of("loss", [(i, 100.0 + i, 2.0) for i in range(5, 10)]), generation=1),
    ),
)
RISING = MetricSeries.of("accuracy", [(i, 100.0 + i, i / 100) for i in range(101)])


def test_each_metric_has_a_panel_with_all_its_curves() -> None:
    other = MetricSeries.of("loss", [(0, 0.0, 1.0)], rank=1)

    assert panels([FALLING, RISING, other]) == [
        Panel("loss", (FALLING, other)),
        Panel("accuracy", (RISING,)),
    ]


def test_a_straight_line_looks_like_one() -> None:
    assert in_text(panels([RISING]), 30, 9) == [
        "    accuracy by step",
        "  1 ┤                    ⣀⡠⠤⠒⠋",
        "    │               ⣀⡤⠴⠒⠉⠁",
        "0.5 ┤          ⣀⡤⠖⠚⠉",
        "    │    ⢀⣀⠤⠖⠚⠉",
        "  0 ┤⣠⠤⠒⠊⠉",
        "    └┬───────────────────────┬",
        "     0                     100",
        "     ⠒⠒ rank 0 1",
    ]


@pytest.mark.parametrize("by", ["step", "time"])
def test_two_panels_fit_80_by_24(by: str) -> None:
    lines = in_text(panels([FALLING, RISING]), 80, 22, by)  # type: ignore[arg-type]

    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert [line.strip() for line in lines if by in line] == [f"loss by {by}", f"accuracy by {by}"]


def test_where_a_curve_is_no_number_there_is_a_gap_and_no_error() -> None:
    values = [1.0, 1.0, math.nan, math.inf, 1.0, 1.0]
    curve = MetricSeries.of("loss", [(i, float(i), value) for i, value in enumerate(values)])

    row = next(line for line in in_text(panels([curve]), 40, 7) if "⠤" in line or "⠒" in line)

    body = row.partition("│")[2] or row.partition("┤")[2]
    assert body.strip()[0] != " "
    assert " " in body.strip()


def test_a_curve_without_any_number_is_said_to_have_none() -> None:
    curve = MetricSeries.of("loss", [(0, 0.0, math.nan)])

    assert in_text(panels([curve]), 40, 10) == ["loss", "  no point is a number", ""]


def test_points_that_were_replaced_are_dots_beside_the_curve() -> None:
    assert in_text(panels([REPEATED]), 60, 11) == [
        "  loss by step",
        "2 ┤                               ·     ·      ·     ·     ·",
        "  │",
        "  │",
        "1 ┤⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠢⡀",
        "  │                          ⠈⠢⡀",
        "  │                            ⠑⢄",
        "0 ┤                              ⠑⢄⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀",
        "  └┬───────────┬────────────┬───────────┬────────────┬──────",
        "   0           2            4           6            8",
        "   ⠒⠒ rank 0 0   ·· replaced: generation 1",
    ]


def test_seconds_count_from_the_first_point_even_if_it_was_replaced() -> None:
    (older,) = REPEATED.replaced
    again = replace(REPEATED, times=tuple(200.0 + i for i in range(10)))

    assert REPEATED.start() == 100
    assert again.start() == 105
    assert older.seconds(again.start()) == (0, 1, 2, 3, 4)


def test_a_picture_has_a_pale_dashed_line_for_what_was_replaced(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = [tmp_path / name for name in ("with.svg", "without.svg")]

    to_file(panels([REPEATED]), paths[0])
    to_file(panels([replace(REPEATED, replaced=())]), paths[1])

    dashed = [path.read_text().count("stroke-dasharray") for path in paths]
    assert dashed == [2, 0]  # the line and its entry in the legend
    assert "stroke-opacity: 0.45" in paths[0].read_text()


values = st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.lists(st.lists(values, min_size=1, max_size=50), min_size=1, max_size=4),
    st.integers(30, 200),
    st.integers(8, 60),
)
@example([[0.0, 5e-324]], 80, 24)  # the least number there is
@example([[-1.0e308, 1.0e308]], 80, 24)
def test_whatever_is_drawn_fits(curves: list[list[float]], columns: int, rows: int) -> None:
    drawn = [
        MetricSeries.of(
            "loss", [(i, float(i), value) for i, value in enumerate(curve)], run=f"run-{n}"
        )
        for n, curve in enumerate(curves)
    ]

    lines = in_text(panels(drawn), columns, rows)

    assert all(len(line) <= columns for line in lines)
    assert len(lines) <= max(rows, 8)


@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_a_picture_has_the_kind_of_its_name(tmp_path: Path, ending: str, magic: bytes) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"curve.{ending}"

    to_file(panels([FALLING, RISING]), path, "time", "a title")

    assert path.read_bytes().startswith(magic)
    assert path.stat().st_size > 5000


def test_another_kind_of_picture_is_refused() -> None:
    with pytest.raises(BadPicture, match=r"'x.gif'; its name must end in .png, .svg, .pdf"):
        to_file(panels([FALLING]), Path("x.gif"))


@pytest.mark.process
def test_without_matplotlib_the_remedy_is_named(tmp_path: Path) -> None:
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib" / "__init__.py").write_text("raise ImportError('not here')")
    code = (
        "from pathlib import Path\n"
        "from torchloom.history.plot import to_file\n"
        "try:\n    to_file([], Path('x.png'))\n"
        "except Exception as error:\n    print(type(error).__name__, error.exit_code, error)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}"],
        capture_output=True,
        text=True,
    )

    assert done.stdout.startswith(f"{NoMatplotlib.__name__} 1 ")
    assert "pip install 'torchloom[plots]'" in done.stdout


@pytest.mark.process
def test_matplotlib_is_imported_for_pictures_alone() -> None:
    code = (
        "import sys\n"
        "from torchloom.history.plot import in_text, panels\n"
        "from torchloom.history.series import MetricSeries as Series\n"
        "in_text(panels([Series.of('a', [(0, 0.0, 1.0)])]), 80, 24)\n"
        "assert not {'matplotlib', 'numpy'} & set(sys.modules)\n"
    )

    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
