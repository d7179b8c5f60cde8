"""Figures of runs: what is drawn equals the data, everything can be read, and files come out the same every time."""

from __future__ import annotations

import statistics
import struct
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.text import Text
from report_runs import CHANCE, COST, TASKS, make_config, make_group, make_run

from mcit import metrics
from mcit.registry import method_names
from mcit.reports.figures import (
    Drawing,
    FigureFile,
    draw_critical_difference,
    draw_figures,
    write_figures,
)
from mcit.reports.figures.data import make_settings, read_strength
from mcit.reports.figures.ranks import find_bars
from mcit.reports.figures.style import (
    COLOURS,
    DOTS,
    LOOKS,
    SMALLEST,
    TALLEST,
    look_up,
    write_drawing,
)
from mcit.reports.runs import Group, Run, group_runs

GOOD = [[60.0], [55.0, 90.0], [50.0, 85.0, 75.0], [45.0, 80.0, 70.0, 80.0]]
BETTER = [[62.0], [58.0, 91.0], [57.0, 88.0, 73.0], [55.0, 87.0, 72.0, 76.0]]
BAD = [[61.0], [20.0, 92.0], [10.0, 60.0, 78.0], [5.0, 55.0, 40.0, 84.0]]
CLASSES = ("cifar100[0-3]", "cifar100[4-7]", "cifar100[8-11]", "cifar100[12-15]")
LONG = ("A data set with a long name", "TextCaps, captions of text", "ScienceQA", "GQA")


def draw(groups: Sequence[Group]) -> dict[str, Drawing]:
    return {drawing.name: drawing for drawing in draw_figures(groups)}


def sweep(method: str, strengths: dict[float, Sequence]) -> list[Run]:
    """Runs of a method with several strengths, each with one or more matrices."""
    return [
        make_run(method, rows, seed, make_config(method, seed=seed, options={"strength": strength}))
        for strength, matrices in strengths.items()
        for seed, rows in enumerate(matrices, start=1)
    ]


@pytest.fixture(scope="module")
def three() -> list[Group]:
    return [
        make_group("finetune", [BAD, BAD]),
        make_group("ewc", [GOOD]),
        make_group("ewc_dr", [GOOD, BETTER]),
    ]


@pytest.fixture(scope="module")
def drawn(three) -> dict[str, Drawing]:
    return draw(three)


@pytest.fixture(scope="module")
def crowded() -> dict[str, Drawing]:
    """All methods there are, and two of somebody else's, on tasks with long names."""
    names = [*method_names(), "their-own-method", "LoRA-MoE"]
    groups = [
        make_group(name, [GOOD, BETTER], tasks=LONG, config=make_config(name, LONG))
        for name in names
    ]
    return draw(groups)


@pytest.fixture(scope="module")
def strengths() -> dict[str, Drawing]:
    runs = [make_run("finetune", BAD, config=make_config("finetune"))]
    runs += sweep("ewc", {300: [GOOD], 1000: [BETTER, GOOD], 3000: [GOOD]}) + sweep(
        "mas", {10: [BAD], 100: [GOOD]}
    )
    return draw(group_runs(runs))


def find_line(axes, label: str):
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return line


def texts(figure: Figure) -> list[Text]:
    """All text that shows; ticks outside of the axes have labels that nobody sees."""
    figure.draw_without_rendering()
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [
                tick
                for minor in (False, True)
                for tick in (axis.get_minor_ticks() if minor else axis.get_major_ticks())
            ]
            hidden |= {
                t
                for tick in ticks
                if not low <= tick.get_loc() <= high
                for t in (tick.label1, tick.label2)
            }
            hidden |= {t for tick in ticks if not axes.axison for t in (tick.label1, tick.label2)}
    return [
        t
        for t in figure.findobj(Text)
        if t.get_visible() and t.get_text().strip() and t not in hidden
    ]


# ---- looks


def test_no_two_methods_look_alike():
    looks = [look_up(name) for name in dict.fromkeys([*LOOKS, *method_names()])]
    pairs = [(look.colour, look.marker) for look in looks]
    assert len(set(pairs)) == len(pairs), "give the new method a look of its own in LOOKS"
    assert {look.colour for look in looks} <= set(COLOURS)


def test_a_method_keeps_its_look_whatever_else_is_drawn(drawn, crowded):
    few, many = (find_line(d["average"].figure.axes[0], "ewc_dr") for d in (drawn, crowded))
    assert (few.get_color(), few.get_marker()) == (many.get_color(), many.get_marker())
    assert few.get_color().upper() == LOOKS["ewc_dr"].colour
    stranger = find_line(crowded["average"].figure.axes[0], "their-own-method")
    assert (stranger.get_color().upper(), stranger.get_marker()) == (
        look_up("their-own-method").colour,
        "p",
    )


# ---- what is drawn


def test_curves_are_means_over_seeds_with_bands_of_one_deviation(drawn, three):
    left, right = drawn["average"].figure.axes
    for axes, read in ((left, metrics.average_seen), (right, metrics.score_when_learned)):
        bands = iter(axes.collections)
        for group in three:
            rows = list(zip(*(read(run.matrix) for run in group.runs), strict=True))
            assert find_line(axes, group.method).get_ydata() == pytest.approx(
                [statistics.fmean(r) for r in rows]
            )
            if len(group.runs) > 1:
                heights = next(bands).get_paths()[0].vertices[:, 1]
                for row in rows:
                    for side in (-1, 1):
                        edge = statistics.fmean(row) + side * statistics.stdev(row)
                        assert np.abs(heights - edge).min() < 1e-9
    assert [label.get_text() for label in left.get_xticklabels()] == list(TASKS)


def test_class_incremental_curves_run_over_the_classes_seen():
    chance = [25.0, 12.5, 100 / 12, 6.25]
    drawn = draw(
        [
            make_group(
                "ewc", [GOOD], chance, CLASSES, "efcil", config=make_config("ewc", ["cifar100:4x4"])
            )
        ]
    )
    axes = drawn["average"].figure.axes[0]
    assert list(find_line(axes, "ewc").get_xdata()) == [4, 8, 12, 16]
    assert axes.get_xlabel() == "classes seen"
    columns = [label.get_text() for label in drawn["matrix"].figure.axes[0].get_xticklabels()]
    assert columns == ["0–3", "4–7", "8–11", "12–15"]
    lost = [text.get_text() for text in drawn["forgetting"].figure.axes[0].texts]
    assert lost == [
        "5.0",
        "10.0",
        "5.0",
        "15.0",
        "10.0",
        "5.0",
    ]  # points, since chance differs from task to task


def test_every_cell_of_the_matrix_has_its_value_written_in_it(drawn):
    cells = {
        axes.get_title(loc="left"): [text.get_text() for text in axes.texts]
        for axes in drawn["matrix"].figure.axes
    }
    assert cells["ewc"] == [f"{value:.1f}" for row in GOOD for value in row]
    mean = [
        [(a + b) / 2 for a, b in zip(*rows, strict=True)] for rows in zip(GOOD, BETTER, strict=True)
    ]
    assert cells["ewc_dr"] == [f"{value:.1f}" for row in mean for value in row]


def test_forgetting_is_the_transfer_of_the_tables_and_a_gain_is_negative():
    rows = [[60.0], [66.0, 50.0], [30.0, 40.0, 75.0]]
    group = make_group("ewc", [rows], CHANCE[:3], TASKS[:3], config=make_config("ewc", TASKS[:3]))
    (axes,) = draw([group])["forgetting"].figure.axes
    # (60-66)/60, (60-30)/60; the second task was never above chance, so that nothing of it can be forgotten
    assert [text.get_text() for text in axes.texts] == ["−10.0", "50.0", "–"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["nlvr2", "snli-ve"]


def test_sensitivity_has_a_point_for_every_strength_and_one_seed_is_hollow(strengths):
    left, right = strengths["sensitivity"].figure.axes
    line = find_line(left, "ewc")
    last = [sum(rows[-1]) / 4 for rows in (GOOD, BETTER)]
    assert list(line.get_xdata()) == [300, 1000, 3000]
    assert list(line.get_ydata()) == pytest.approx(
        [last[0], last[1], last[0]]
    )  # of seed 1, which all have
    assert line.get_markerfacecolor() == "white"
    ((filled, _, bars),) = [c for c in left.containers if not isinstance(c, BarContainer)]
    assert list(filled.get_xdata()) == [1000]  # the one strength with two seeds
    ends = bars[0].get_segments()[0][:, 1]
    assert sorted(ends) == pytest.approx(
        [sum(last) / 2 + side * statistics.stdev(last) for side in (-1, 1)]
    )
    assert left.get_xscale() == right.get_xscale() == "log"
    assert find_line(left, "finetune").get_ydata()[0] == pytest.approx(sum(BAD[-1]) / 4)
    assert "filled points are the mean over all seeds" in strengths["sensitivity"].caption
    assert "Level lines: finetune, seeds 1." in strengths["sensitivity"].caption
    assert "mas is best at strength 100" in strengths["sensitivity"].caption


def test_strengths_are_not_compared_over_different_seeds():
    """Seed 2 is easier, and only the middle strength has it: the line must not rise there for that reason."""
    runs = sweep("ewc", {1: [GOOD], 10: [GOOD, BETTER], 100: [GOOD]})
    line = find_line(draw(group_runs(runs))["sensitivity"].figure.axes[0], "ewc")
    assert len(set(line.get_ydata())) == 1


def test_no_strength_at_all_has_a_place_on_the_axis():
    drawn = draw(group_runs(sweep("ewc", {0: [BAD], 10: [GOOD], 100: [BETTER]})))
    axes = drawn["sensitivity"].figure.axes[0]
    assert list(find_line(axes, "ewc").get_xdata()) == [0, 10, 100]
    assert np.isfinite(axes.transData.transform([(0, 50)])).all()


def test_a_strength_that_no_option_names_is_the_method_s_own(three):
    told = make_run(
        "ewc", GOOD, estimator="mean of squares; strength 1e+06, merge sum, gradient penalty"
    )
    assert read_strength(told) == 1e6
    assert read_strength(make_run("finetune", GOOD, estimator="no protection")) is None


def test_old_tasks_stand_against_new_ones(drawn):
    (axes,) = drawn["plasticity"].figure.axes
    alone = find_line(axes, "ewc")
    assert tuple(alone.get_xydata()[0]) == pytest.approx(
        ((60 + 90 + 75 + 80) / 4, (45 + 80 + 70) / 3)
    )
    assert alone.get_markerfacecolor() == "white"  # one seed
    (several,) = [
        container[0]
        for container in axes.containers
        if container.get_label() == "ewc_dr, all seeds"
    ]
    new, old = zip(
        *((sum(m[t][t] for t in range(4)) / 4, sum(m[-1][:3]) / 3) for m in (GOOD, BETTER)),
        strict=True,
    )
    assert tuple(several.get_xydata()[0]) == pytest.approx((sum(new) / 2, sum(old) / 2))
    assert several.get_markerfacecolor() == LOOKS["ewc_dr"].colour


def test_next_to_nothing_does_not_fill_the_axes():
    close = [*GOOD[:-1], [*GOOD[-1][:-1], GOOD[-1][-1] + 0.1]]
    (axes,) = draw([make_group("ewc", [GOOD]), make_group("mas", [close])])[
        "plasticity"
    ].figure.axes
    for low, high in (axes.get_xlim(), axes.get_ylim()):
        assert high - low >= 10


def test_points_are_filled_where_all_are_one_seed():
    (axes,) = draw([make_group("ewc", [GOOD]), make_group("mas", [BAD])])["plasticity"].figure.axes
    assert find_line(axes, "ewc").get_markerfacecolor() == LOOKS["ewc"].colour


def test_variants_of_one_method_have_shades_of_its_colour():
    made = [make_group("ewc", [rows]) for rows in (GOOD, BAD)]
    groups = [
        replace(group, variant=f"ewc[merge={name}]") for group, name in zip(made, "ab", strict=True)
    ]
    (axes,) = draw(groups)["plasticity"].figure.axes
    first, second = (find_line(axes, group.variant).get_color() for group in groups)
    assert first != second == LOOKS["ewc"].colour


def test_scores_over_the_tasks_have_one_scale(drawn):
    left, right = drawn["average"].figure.axes
    assert left.get_ylim() == right.get_ylim()


def test_cost_is_what_a_method_adds_to_finetuning():
    slow = {**COST, "fit_seconds": 90.0, "bytes_held": 5 * 2**20}
    groups = [
        make_group("finetune", [BAD]),
        make_group("ewc", [GOOD], cost=slow),
        make_group("si", [GOOD]),
    ]
    left, right = draw(groups)["cost"].figure.axes
    assert [bar.get_width() for bar in left.patches] == pytest.approx([30.0, 0.0])
    assert [bar.get_width() for bar in right.patches] == pytest.approx([5.0, 3.0])
    assert [text.get_text() for text in left.texts] == ["+30 (+45 %)", "+0 (+0 %)"]
    assert [label.get_text() for label in left.get_yticklabels()] == ["ewc", "si"]


def test_without_finetuning_cost_is_told_in_full():
    drawing = draw([make_group("ewc", [GOOD]), make_group("si", [GOOD])])["cost"]
    assert [bar.get_width() for bar in drawing.figure.axes[0].patches] == pytest.approx(
        [66.0, 66.0]
    )
    assert "no run of finetune" in drawing.caption


# ---- which figures there are


def test_a_run_alone_has_nothing_to_be_held_against():
    assert list(draw([make_group("ewc", [GOOD])])) == ["average", "matrix", "forgetting"]


def test_what_has_learned_one_task_has_no_figure():
    assert draw([make_group("ewc", [[[60.0]]])]) == {}
    assert draw([make_group("ewc", [[]])]) == {}


def test_results_without_cost_have_no_figure_of_it():
    groups = [
        make_group(name, [GOOD], cost={}, track="foreign", config={})
        for name in ("theirs", "others")
    ]
    assert "cost" not in draw(groups)


def test_several_settings_have_figures_of_their_own():
    chance = [25.0, 12.5, 100 / 12, 6.25]
    efcil = make_group(
        "ewc", [GOOD], chance, CLASSES, "efcil", config=make_config("ewc", ["cifar100:4x4"])
    )
    names = list(draw([make_group("ewc", [GOOD]), efcil]))
    assert names[:2] == ["average-vqa-nlvr2-snli-ve-vcr", "matrix-vqa-nlvr2-snli-ve-vcr"]
    assert "average-cifar100-4x4" in names


def test_of_many_strengths_one_is_drawn_and_the_caption_says_which():
    many = {strength: [GOOD] for strength in range(1, 13)} | {6: [GOOD, BETTER]}
    drawn = draw(group_runs([*sweep("ewc", many), *sweep("mas", {1: [BAD]})]))
    axes = drawn["average"].figure.axes[0]
    assert [line.get_label() for line in axes.lines] == ["ewc@6", "mas"]
    assert "most seeds" in drawn["average"].caption
    assert "ewc@6" in drawn["average"].caption
    assert len(find_line(drawn["sensitivity"].figure.axes[0], "ewc").get_xdata()) == 12


def test_an_unfinished_run_ends_where_it_is_and_is_named():
    runs = [make_run("ewc", GOOD), make_run("mas", GOOD[:2])]
    drawing = draw(group_runs(runs))["average"]
    (line,) = [line for line in drawing.figure.axes[0].lines if line.get_label().startswith("mas")]
    assert len(line.get_xdata()) == 2
    assert "Unfinished: mas (seed 1, 2 of 4 tasks)" in drawing.caption


def test_every_figure_has_a_title_and_a_caption_that_tells_its_seeds(drawn, crowded, strengths):
    for drawing in [*drawn.values(), *crowded.values(), *strengths.values()]:
        assert drawing.title
        assert drawing.figure.get_suptitle() == drawing.title
        assert "seed" in drawing.caption
        assert drawing.caption.endswith(".")
    assert "n = 2 seeds (1 for ewc)" in drawn["average"].caption
    assert "Not all were run with the same seeds" in drawn["average"].caption
    assert "ends highest" not in drawn["average"].caption


def test_the_caption_says_who_ends_highest_if_all_had_the_same_seeds():
    caption = draw([make_group("finetune", [BAD, BAD]), make_group("ewc", [GOOD, BETTER])])[
        "average"
    ].caption
    last = [sum(rows[-1]) / 4 for rows in (GOOD, BETTER)]
    assert f"ewc ends highest ({sum(last) / 2:.2f} ± {statistics.stdev(last):.2f} %)" in caption
    assert "finetune lowest (46.00 ± 0.00 %)" in caption


# ---- critical difference


def test_bars_join_what_does_not_differ():
    assert find_bars([1.2, 2.1, 3.4, 3.5, 4.8], 1.438) == [(0, 1), (1, 3), (2, 4)]
    assert find_bars([1.0, 2.0, 3.0], 0.5) == []
    assert find_bars([1.0, 1.5, 2.0], 5.0) == [(0, 2)]


def test_the_diagram_has_a_mark_at_every_rank():
    ranks = {"finetune": 4.8, "ewc": 3.4, "ewc_dr": 1.2, "mas": 2.1, "si": 3.5}
    figure = draw_critical_difference(list(ranks), list(ranks.values()), 1.438)
    (axes,) = figure.axes
    marked = {
        line.get_color(): line.get_xdata()[0]
        for line in axes.lines
        if line.get_marker() not in ("None", "")
    }
    assert marked == {LOOKS[name].colour: rank for name, rank in ranks.items()}
    thick = [list(line.get_xdata()) for line in axes.lines if line.get_linewidth() == 2.5]
    assert thick == [[1.2, 2.1], [2.1, 3.5], [3.4, 4.8]]
    assert {"ewc_dr  1.20", "4.80  finetune"} <= {text.get_text() for text in axes.texts}
    check_readable(figure)


@pytest.mark.parametrize("cd", [0.4, 1.9, 5.33])
def test_the_critical_difference_is_told_whatever_its_size(cd):
    figure = draw_critical_difference(
        ["ewc", "mas", "a method with a long name"], [1.0, 2.2, 2.8], cd
    )
    check_readable(figure)
    (told,) = [text.get_text() for text in figure.axes[0].texts if "critical" in text.get_text()]
    assert told == f"critical difference {cd:.2f}{', beyond the scale' if cd > 2 else ''}"


def test_variants_stand_in_the_diagram_as_their_method_does():
    (axes,) = draw_critical_difference(["ewc@300", "mas[cap=1]"], [1.0, 2.0], 0.5).figure.axes
    marked = [line.get_color() for line in axes.lines if line.get_marker() not in ("None", "")]
    assert marked == [LOOKS["ewc"].colour, LOOKS["mas"].colour]


@pytest.mark.parametrize(
    ("names", "ranks", "cd"),
    [(["a"], [1.0], 1.0), (["a", "b"], [1.0], 1.0), (["a", "b"], [1, 2], 0)],
)
def test_a_diagram_of_nothing_is_refused(names, ranks, cd):
    with pytest.raises(ValueError, match=r"two or more|above 0"):
        draw_critical_difference(names, ranks, cd)


# ---- whether it can be read


def check_readable(figure: Figure) -> None:
    """No print below the smallest size, nothing cut off at the edge, no two labels in one place."""
    found = texts(figure)
    boxes = np.array(
        [text.get_window_extent().extents for text in found]
    )  # [texts, 4]: left, low, right, high
    assert min(text.get_fontsize() for text in found) >= SMALLEST
    cut = (boxes[:, :2] < -1).any(axis=1) | (boxes[:, 2:] > np.array(figure.bbox.size) + 1).any(
        axis=1
    )
    assert not cut.any(), [found[place].get_text() for place in np.nonzero(cut)[0]]
    flat = [place for place, text in enumerate(found) if not text.get_rotation() % 90]
    low, high = boxes[flat, :2] + 1, boxes[flat, 2:] - 1
    over = ((low[:, None] < high[None]) & (low[None] < high[:, None])).all(axis=2)
    pairs = [
        (found[flat[a]].get_text(), found[flat[b]].get_text())
        for a, b in np.argwhere(over)
        if a < b
    ]
    assert not pairs


@pytest.mark.parametrize("name", ["average", "matrix-1", "forgetting", "plasticity", "cost"])
def test_a_crowded_figure_can_be_read(crowded, name):
    check_readable(crowded[name].figure)


@pytest.mark.parametrize("name", ["average", "sensitivity", "plasticity", "matrix"])
def test_a_figure_of_strengths_can_be_read(strengths, name):
    check_readable(strengths[name].figure)


def test_figures_fit_a_column_or_a_page(drawn, crowded, strengths):
    for drawing in [*drawn.values(), *crowded.values(), *strengths.values()]:
        width, height = drawing.figure.get_size_inches()
        assert 3.3 <= width <= 6.9 + 1e-6, drawing.name
        assert height <= TALLEST + 0.1, drawing.name
    assert drawn["plasticity"].figure.get_figwidth() == pytest.approx(3.3)
    assert drawn["average"].figure.get_figwidth() == pytest.approx(6.9)


def test_many_tasks_take_several_pages_of_whole_numbers():
    tasks = tuple(f"data[{5 * n}-{5 * n + 4}]" for n in range(20))
    rows = [[float(50 + t - j) for j in range(t + 1)] for t in range(20)]
    config = make_config("ewc", ["data:20x5"])
    groups = [
        make_group(
            name, [rows], [5.0] * 20, tasks, "efcil", config={**config, "method": {"name": name}}
        )
        for name in ("ewc", "mas")
    ]
    drawn = draw(groups)
    assert [name for name in drawn if name.startswith("matrix")] == ["matrix-1", "matrix-2"]
    assert drawn["matrix-2"].title.endswith("(2 of 2)")
    assert [text.get_text() for text in drawn["matrix-1"].figure.axes[0].texts][:3] == [
        "50",
        "51",
        "50",
    ]
    check_readable(drawn["matrix-1"].figure)


# ---- files


@pytest.fixture(scope="module")
def written(three, tmp_path_factory) -> tuple[list[FigureFile], Path]:
    folder = tmp_path_factory.mktemp("figures")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a glyph that the font lacks is a warning
        return write_figures(three[:1], folder / "new"), folder


def test_every_figure_is_written_in_three_forms(written):
    files, folder = written
    assert [file.name for file in files] == ["average", "matrix", "forgetting"]
    found = {path for file in files for path in (file.svg, file.pdf, file.png)}
    assert found == set((folder / "new").iterdir())
    for file in files:
        assert file.svg.read_text(encoding="utf-8").startswith("<?xml")
        assert file.pdf.read_bytes().startswith(b"%PDF")
        width, height = struct.unpack(">II", file.png.read_bytes()[16:24])
        assert 3.3 * DOTS - 1 <= width <= 6.9 * DOTS
        assert height <= TALLEST * DOTS


def test_files_carry_their_caption_and_no_date(written):
    file = written[0][0]
    text = file.svg.read_text(encoding="utf-8")
    assert "<dc:date>" not in text
    assert file.caption.split(";")[0] in text
    assert b"CreationDate" not in file.pdf.read_bytes()


def test_the_same_runs_give_the_same_bytes(written, three):
    files, folder = written
    first = files[0]
    again = write_drawing(draw(three[:1])["average"], folder / "again")
    for one, other in ((first.svg, again.svg), (first.pdf, again.pdf), (first.png, again.png)):
        assert one.read_bytes() == other.read_bytes(), one.suffix


def test_the_user_s_own_settings_neither_matter_nor_change(three, drawn):
    with matplotlib.rc_context(
        {"font.size": 40, "lines.linewidth": 9, "axes.grid": True, "svg.fonttype": "none"}
    ):
        before = dict(matplotlib.rcParams)
        drawing = draw(three)["average"]
        assert dict(matplotlib.rcParams) == before
    assert find_line(drawing.figure.axes[0], "ewc").get_linewidth() == 1.2
    assert max(text.get_fontsize() for text in texts(drawing.figure)) < 10


def test_groups_of_one_setting_stand_together(three):
    (setting,) = make_settings(three)
    assert [series.label for series in setting.series] == ["finetune", "ewc", "ewc_dr"]
    assert setting.title == "vqa → nlvr2 → snli-ve → vcr"
