"""Figures of runs: they show the data, can be read, and are the same files every time."""

from __future__ import annotations

import itertools
import statistics
import struct
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from report_runs import CHANCE, TASKS, make_config, make_groups, make_run, make_scores

from mcit.registry import METHOD, list_names
from mcit.reports.figures import draw_figures, write_figures
from mcit.reports.figures.style import (
    DOTS_PER_INCH,
    LINE_STYLES,
    OTHER_COLORS,
    PAPER,
    SCREEN,
    SMALLEST,
    STYLES,
    Drawing,
    FigureFile,
    Style,
    drawing_in,
    find_line_style,
    make_plain,
    wrap_label,
    write_drawing,
)
from mcit.reports.groups import Group, group_runs
from mcit.reports.runs import Run
from mcit.reports.significance import compare

GOOD = [[60.0], [55.0, 90.0], [50.0, 85.0, 75.0], [45.0, 80.0, 70.0, 80.0]]
BETTER = [[62.0], [58.0, 91.0], [57.0, 88.0, 73.0], [55.0, 87.0, 72.0, 76.0]]
BAD = [[61.0], [20.0, 92.0], [10.0, 60.0, 78.0], [5.0, 55.0, 40.0, 84.0]]
CLASS_TASKS = tuple(f"cifar100[{4 * n}-{4 * n + 3}]" for n in range(4))
CLASS_INCREMENTAL = {
    "tasks": CLASS_TASKS,
    "chance": (25.0, 12.5, 100 / 12, 6.25),
    "track": "efcil",
}
LONG = ("A data set with a long name", "TextCaps, captions of text", "ScienceQA", "GQA")


def draw(groups: Sequence[Group], style: Style = SCREEN) -> dict[str, Drawing]:
    with drawing_in(style):
        return {drawing.name: drawing for drawing in draw_figures(groups, compare(groups), style)}


def sweep(method: str, strengths: dict[float, Sequence]) -> list[Run]:
    """Return runs of a method with several strengths, each with one or more matrices."""
    return [
        make_run(method, rows, seed, make_config(method, seed=seed, options={"strength": strength}))
        for strength, matrices in strengths.items()
        for seed, rows in enumerate(matrices, start=1)
    ]


@pytest.fixture(scope="module")
def three() -> list[Group]:
    runs = [make_run("finetune", BAD, seed) for seed in (1, 2)]
    runs.append(make_run("ewc", GOOD))
    runs += [make_run("ewc_dr", GOOD, 1), make_run("ewc_dr", BETTER, 2)]
    return group_runs(runs)


@pytest.fixture(scope="module")
def drawn(three) -> dict[str, Drawing]:
    return draw(three)


@pytest.fixture(scope="module")
def classes() -> dict[str, Drawing]:
    runs = [
        make_run(method, rows, seed, make_config(method, ["cifar100:4x4"]), **CLASS_INCREMENTAL)
        for method, matrices in {"ewc": [GOOD, BETTER], "mas": [BAD, BAD]}.items()
        for seed, rows in enumerate(matrices, 1)
    ]
    return draw(group_runs(runs))


def make_strengths() -> list[Group]:
    runs = [make_run("finetune", BAD)]
    runs += sweep("ewc", {300: [GOOD], 1000: [BETTER, GOOD], 3000: [GOOD]})
    return group_runs(runs + sweep("mas", {10: [BAD], 100: [GOOD]}))


def make_crowd() -> list[Group]:
    """Return all methods there are, and two of somebody else's, on tasks with long names."""
    names = [*list_names(METHOD), "their-own-method", "LoRA-MoE"]
    return make_groups(*names, matrices=[GOOD, BETTER], tasks=LONG)


def make_classifiers() -> list[Group]:
    scores = make_scores("ewc_dr", BETTER, **CLASS_INCREMENTAL)
    other = {name: scores[name] for name in ("matrix", "seen", "metrics")}
    run = make_run("ewc_dr", GOOD, classifiers={"lda": other, "ncm": other}, **CLASS_INCREMENTAL)
    return group_runs([run])


def make_many_tasks() -> list[Group]:
    tasks = tuple(f"data[{5 * n}-{5 * n + 4}]" for n in range(20))
    chance = [100 / (5 * n + 5) for n in range(20)]
    rows = [[float(50 + t - j) for j in range(t + 1)] for t in range(20)]
    about = {"tasks": tasks, "chance": chance, "track": "efcil"}
    return make_groups("ewc", "mas", "si", matrices=[rows], **about)


CROWDS = {
    "one run": lambda: make_groups("ewc", matrices=[GOOD]),
    "one run of two tasks": lambda: make_groups(
        "ewc", matrices=[GOOD[:2]], tasks="ab", chance=(0, 0)
    ),
    "strengths": make_strengths,
    "all methods": make_crowd,
    "classifiers": make_classifiers,
    "many tasks": make_many_tasks,
}


def find_lines(drawing: Drawing, label: str) -> list:
    """Return the points of a group in each panel, as matplotlib's error bars hold them."""
    return [
        container.lines[0]
        for axes in drawing.figure.axes
        for container in axes.containers
        if container.get_label() == label
    ]


# ---- line styles


def find_lab(color: str) -> np.ndarray:
    """Return a color in CIE L*a*b* (D65), where distance is roughly what the eye sees."""
    parts = np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    relative = (to_xyz @ linear) / (0.95047, 1, 1.08883)
    straight = relative * (29 / 6) ** 2 / 3 + 4 / 29
    x, y, z = np.where(relative > (6 / 29) ** 3, np.cbrt(relative), straight)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_methods_are_told_apart_by_eye():
    """Colors differ well, and those that differ least have different markers."""
    looks = [find_line_style(name) for name in dict.fromkeys([*LINE_STYLES, *list_names(METHOD)])]
    for first, second in itertools.combinations(looks, 2):
        distance = np.linalg.norm(find_lab(first.color) - find_lab(second.color))
        assert distance > 14, (first, second)
        if first.marker == second.marker:
            assert distance > 30, (first, second)


def test_the_distance_of_colors_is_that_of_black_and_white():
    assert np.linalg.norm(find_lab("#FFFFFF") - find_lab("#000000")) == pytest.approx(100, abs=0.1)


def test_no_two_methods_have_the_same_color():
    known = list(dict.fromkeys([*LINE_STYLES, *list_names(METHOD)]))
    colors = [find_line_style(name).color for name in known]
    assert len(set(colors)) == len(colors), "give the new method a color of its own in LINE_STYLES"
    assert len(set(colors)) > 8


def test_a_method_of_somebody_else_has_no_color_of_ours():
    assert not set(OTHER_COLORS) & {look.color for look in LINE_STYLES.values()}
    for name in ("derpp", "their-own-method", "LoRA-MoE"):
        assert find_line_style(name).color in OTHER_COLORS
        assert find_line_style(name) == find_line_style(name)


def test_a_classifier_keeps_the_color_of_its_method_and_has_a_marker_of_its_own():
    plain = find_line_style("ewc_dr")
    with_lda = find_line_style("ewc_dr", "lda")
    assert with_lda.color == plain.color
    assert with_lda.marker != plain.marker


def test_a_method_has_one_color_and_marker_in_every_figure(drawn):
    look = find_line_style("ewc_dr")
    for name in ("average", "curves", "plasticity"):
        for line in find_lines(drawn[name], "ewc_dr"):
            assert line.get_color().upper() == look.color
            assert line.get_marker() == look.marker


def test_variants_of_one_method_have_shades_of_its_color():
    runs = sweep("ewc", {1: [GOOD], 10: [BAD]})
    drawing = draw(group_runs(runs))["curves"]
    first, second = (find_lines(drawing, name)[0].get_color() for name in ("ewc@1", "ewc@10"))
    assert first != second
    assert second == find_line_style("ewc").color


# ---- what is drawn


def test_points_that_stand_side_by_side_are_inside_the_panel():
    groups = make_groups("ewc", "mas", "si", "lwf", "replay", matrices=[GOOD], **CLASS_INCREMENTAL)
    _, learned = draw(groups)["curves"].figure.axes
    low, high = learned.get_xlim()
    for container in learned.containers:
        places = container.lines[0].get_xdata()
        assert low < min(places)
        assert max(places) < high


def test_the_average_has_the_mean_over_tasks_seen_and_the_score_on_the_newest(drawn):
    average, learned = find_lines(drawn["average"], "ewc")
    assert list(average.get_ydata()) == pytest.approx([sum(row) / len(row) for row in GOOD])
    assert list(learned.get_ydata()) == pytest.approx([row[-1] for row in GOOD])
    assert learned.get_linestyle() == "None"


def test_the_axis_of_the_sequence_has_its_places_and_no_others(classes):
    for axes in classes["curves"].figure.axes:
        assert list(axes.get_xticks()) == [4, 8, 12, 16]


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_panels_have_the_same_axis_of_the_sequence(style):
    groups = make_groups("ewc", "mas", matrices=[GOOD], **CLASS_INCREMENTAL)
    seen, learned = draw(groups, style)["curves"].figure.axes
    assert seen.get_xlim() == learned.get_xlim()


def test_a_panel_above_an_empty_place_has_the_numbers_of_its_axis():
    rows = [row[:] for row in GOOD[:3]]
    groups = make_groups("ewc", matrices=[rows], tasks="abc", chance=(0, 0, 0))
    figure = draw(groups, PAPER)["curves"].figure
    figure.draw_without_rendering()
    numbered = [
        [label.get_text() for label in axes.get_xticklabels() if label.get_visible()]
        for axes in figure.axes
    ]
    assert numbered == [[], ["1", "2", "3"], ["1", "2", "3"]]
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "after task", "after task"]


def test_bounds_stay_when_many_groups_are_left_out_and_the_caption_says_so():
    runs = [*sweep("ewc", {strength: [GOOD] for strength in range(1, 14)})]
    runs.append(make_run("finetune", BAD))
    drawn = draw(group_runs(runs))
    labels = [found.get_label() for found in drawn["curves"].figure.axes[0].containers]
    assert "finetune" in labels
    for name in ("curves", "matrix"):
        assert (
            "Of 14 methods, bounds and those that score highest are shown." in drawn[name].caption
        )
    assert "Of " not in draw(group_runs(runs[:5]))["curves"].caption


def test_the_numbers_of_four_tasks_fit_the_cells_of_a_column(three):
    texts = draw(three, PAPER)["matrix"].figure.axes[0].texts
    assert [text.get_text() for text in texts]


def test_a_legend_has_as_many_columns_as_fit(three):
    (legend,) = draw(three)["plasticity"].figure.legends
    assert legend._ncols == 3


@pytest.mark.parametrize(
    ("text", "letters", "lines"),
    [
        ("ewc (preset=release)", 26, ["ewc (preset=release)"]),
        ("ewc (preset=release)", 16, ["ewc", "(preset=release)"]),
        ("ewc (preset=release)", 12, ["ewc (preset=", "release)"]),
    ],
)
def test_a_long_setting_is_wrapped_where_its_value_begins(text, letters, lines):
    assert wrap_label(text, letters).split("\n") == lines


def test_every_task_has_a_panel_with_means_and_deviations_over_seeds(drawn, three):
    panels = drawn["curves"].figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == [
        f"{number} {task}" for number, task in enumerate(TASKS, start=1)
    ]
    for group in three:
        for task, axes in enumerate(panels):
            (container,) = [found for found in axes.containers if found.get_label() == group.name]
            columns = [
                [run.matrix.rows[t][task] for run in group.runs] for t in range(task, len(TASKS))
            ]
            line, _, bars = container.lines
            assert list(line.get_xdata()) == list(range(task + 1, 5))
            assert list(line.get_ydata()) == pytest.approx(list(map(statistics.fmean, columns)))
            if group.name == "ewc_dr":
                for segment, column in zip(bars[0].get_segments(), columns, strict=True):
                    spread = segment[1][1] - segment[0][1]
                    assert spread == pytest.approx(2 * statistics.stdev(column))


def test_class_incremental_curves_run_over_the_classes_seen(classes):
    left, right = classes["curves"].figure.axes
    (average, learned) = find_lines(classes["curves"], "ewc")
    assert list(average.get_xdata()) == [4, 8, 12, 16]
    expected = np.mean([[np.mean(row) for row in rows] for rows in (GOOD, BETTER)], axis=0)
    assert list(average.get_ydata()) == pytest.approx(list(expected))
    assert left.get_xlabel() == right.get_xlabel() == "classes seen"
    assert left.get_ylim() == right.get_ylim()
    new = np.mean([[row[-1] for row in rows] for rows in (GOOD, BETTER)], axis=0)
    assert list(learned.get_ydata()) == pytest.approx(list(new))


def test_no_line_goes_through_the_scores_of_different_tasks(classes):
    average, learned = find_lines(classes["curves"], "ewc")
    assert average.get_linestyle() == "-"
    assert learned.get_linestyle() == "None"


def test_equal_scores_on_the_task_just_learned_stand_side_by_side():
    runs = [make_run(method, GOOD, **CLASS_INCREMENTAL) for method in ("ewc", "mas")]
    drawing = draw(group_runs(runs))["curves"]
    left, right = (find_lines(drawing, method)[1].get_xdata() for method in ("ewc", "mas"))
    assert list(right - left) == pytest.approx([1.2] * 4)
    assert list(right + left) == pytest.approx([8, 16, 24, 32])


def test_every_cell_of_the_matrix_has_its_value_written_in_it(drawn):
    cells = {
        axes.get_title(loc="left"): [text.get_text() for text in axes.texts]
        for axes in drawn["matrix"].figure.axes
    }
    assert cells["ewc"] == [f"{value:.1f}" for row in GOOD for value in row]
    rows = zip(GOOD, BETTER, strict=True)
    mean = [[(a + b) / 2 for a, b in zip(*pair, strict=True)] for pair in rows]
    assert cells["ewc_dr"] == [f"{value:.1f}" for row in mean for value in row]


def test_a_heat_map_has_a_color_bar(drawn):
    for name, unit in (("matrix", "score (%)"), ("forgetting", "lost (%)")):
        assert unit in [axes.get_ylabel() for axes in drawn[name].figure.axes]


def test_forgetting_is_the_transfer_of_the_tables_and_a_gain_is_negative():
    rows = [[60.0], [66.0, 50.0], [30.0, 40.0, 75.0]]
    groups = make_groups("ewc", matrices=[rows], chance=CHANCE[:3], tasks=TASKS[:3])
    axes = draw(groups)["forgetting"].figure.axes[0]
    # (60-66)/60 and (60-30)/60; the second task was never above chance
    assert [text.get_text() for text in axes.texts] == ["−10.0", "50.0"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["2: nlvr2", "3: snli-ve"]


def test_sensitivity_has_a_point_for_every_strength():
    drawing = draw(make_strengths())["sensitivity"]
    left, right = drawing.figure.axes
    points, _ = find_lines(drawing, "ewc@300")
    assert list(points.get_xdata()) == [300, 1000, 3000]
    last = [sum(rows[-1]) / 4 for rows in (GOOD, BETTER)]
    # of seed 1, which all strengths have
    assert list(points.get_ydata()) == pytest.approx([last[0], last[1], last[0]])
    levels = [line.get_ydata()[0] for line in left.lines if line.get_linestyle() == ":"]
    assert levels == pytest.approx([sum(BAD[-1]) / 4])
    assert left.get_xscale() == right.get_xscale() == "symlog"


def test_strengths_are_not_compared_over_different_seeds():
    """Seed 2 is easier and only the middle strength has it: the line must not rise there."""
    runs = sweep("ewc", {1: [GOOD], 10: [GOOD, BETTER], 100: [GOOD]})
    line = find_lines(draw(group_runs(runs))["sensitivity"], "ewc@1")[0]
    assert len(set(line.get_ydata())) == 1


def test_no_strength_at_all_has_a_place_on_the_axis():
    drawing = draw(group_runs(sweep("ewc", {0: [BAD], 10: [GOOD], 100: [BETTER]})))["sensitivity"]
    assert list(find_lines(drawing, "ewc@0")[0].get_xdata()) == [0, 10, 100]
    assert np.isfinite(drawing.figure.axes[0].transData.transform([(0, 50)])).all()


def test_old_tasks_stand_against_new_ones(drawn):
    drawing = drawn["plasticity"]
    points = [container.lines[0].get_xydata()[0] for container in drawing.figure.axes[0].containers]
    assert tuple(points[1]) == pytest.approx(((60 + 90 + 75 + 80) / 4, (45 + 80 + 70) / 3))
    new, old = zip(
        *((sum(m[t][t] for t in range(4)) / 4, sum(m[-1][:3]) / 3) for m in (GOOD, BETTER)),
        strict=True,
    )
    assert tuple(points[2]) == pytest.approx((sum(new) / 2, sum(old) / 2))


def test_equal_scores_are_not_drawn_on_a_tiny_scale():
    low = [[value / 10 for value in row] for row in GOOD]
    (axes,) = draw(make_groups("ewc", "mas", matrices=[low]))["plasticity"].figure.axes
    for lower, upper in (axes.get_xlim(), axes.get_ylim()):
        assert upper - lower == pytest.approx(5)


def test_the_overview_has_a_row_for_each_method_best_first(drawn):
    (axes,) = drawn["overview"].figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["ewc_dr", "ewc", "finetune"]
    ends = [container.lines[0].get_xydata()[0] for container in axes.containers]
    assert ends[1] == pytest.approx((sum(GOOD[-1]) / 4, 1))
    learned = [line.get_xdata()[0] for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert learned[1] == pytest.approx(sum(row[-1] for row in GOOD) / 4)


def test_ranks_are_drawn_as_intervals_of_one_critical_difference():
    matrices = {"ewc_dr": BETTER, "ewc": GOOD, "finetune": BAD}
    runs = [make_run(name, rows, seed) for name, rows in matrices.items() for seed in (1, 2, 3)]
    groups = group_runs(runs)
    comparison = compare(groups)
    drawing = draw(groups)["critical-difference"]
    (axes,) = drawing.figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(matrices)
    for row, container in enumerate(axes.containers):
        line, _, bars = container.lines
        assert tuple(line.get_xydata()[0]) == (row + 1.0, row)
        ends = bars[0].get_segments()[0][:, 0]
        assert ends[1] - ends[0] == pytest.approx(comparison.difference)
    assert f"{comparison.difference:.3f}" in drawing.caption


# ---- which figures there are


def test_a_run_alone_has_nothing_to_be_compared_with():
    drawn = draw(make_groups("ewc", matrices=[GOOD]))
    assert list(drawn) == ["matrix", "average", "curves", "forgetting"]


def test_a_run_that_has_learned_one_task_has_no_figure():
    assert draw(make_groups("ewc", matrices=[[[60.0]]])) == {}
    assert draw(make_groups("ewc", matrices=[[]])) == {}


def test_the_first_figure_of_a_setting_stands_next_to_its_answer(drawn):
    assert [name for name, drawing in drawn.items() if drawing.opens] == ["overview"]
    alone = draw(make_groups("ewc", matrices=[GOOD]))
    assert alone["matrix"].opens == "vqa,nlvr2,snli-ve,vcr"


def test_several_settings_have_figures_of_their_own():
    runs = [make_run("ewc", GOOD)]
    runs.append(
        make_run("ewc", GOOD, config=make_config("ewc", ["cifar100:4x4"]), **CLASS_INCREMENTAL)
    )
    drawn = draw(group_runs(runs))
    tasks = "vqa-nlvr2-snli-ve-vcr"
    assert list(drawn)[:3] == [f"{name}-{tasks}" for name in ("matrix", "average", "curves")]
    assert drawn["curves-cifar100-4x4"].title == "Scores over the sequence: cifar100:4x4"


def test_of_many_groups_the_highest_are_drawn():
    many = {strength: [GOOD] for strength in range(1, 14)} | {6: [BETTER]}
    runs = [*sweep("ewc", many), *sweep("mas", {1: [BAD]})]
    drawing = draw(group_runs(runs))["curves"]
    labels = [container.get_label() for container in drawing.figure.axes[0].containers]
    assert len(labels) == 12
    assert "ewc@6" in labels
    assert "mas" not in labels


def test_an_unfinished_run_ends_where_it_is():
    runs = [make_run("ewc", GOOD), make_run("mas", GOOD[:2])]
    drawing = draw(group_runs(runs))["curves"]
    lines = find_lines(drawing, "mas (seed 1, 2 of 4 tasks)")
    assert [len(line.get_xdata()) for line in lines] == [2, 1, 0, 0]


def test_every_figure_has_a_title_and_a_caption_and_neither_is_drawn(drawn, classes):
    for drawing in [*drawn.values(), *classes.values()]:
        assert drawing.title
        assert drawing.caption.endswith(".")
        assert not drawing.figure.get_suptitle()


# ---- whether it can be read


def list_texts(figure: Figure) -> Iterator[Text]:
    """Yield all text that shows; ticks outside of the axes have labels that nobody sees."""
    figure.draw_without_rendering()
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                if not axes.axison or not low <= tick.get_loc() <= high:
                    hidden |= {tick.label1, tick.label2}
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and text not in hidden:
            yield text


def check_readable(figure: Figure) -> None:
    """Assert that no text is tiny, cut off at the edge, or over another text."""
    found = list(list_texts(figure))
    # [texts, 4]: left, low, right, high
    boxes = np.array([text.get_window_extent().extents for text in found])
    assert min(text.get_fontsize() for text in found) >= SMALLEST
    cut = (boxes[:, :2] < -1).any(axis=1) | (boxes[:, 2:] > figure.bbox.size + 1).any(axis=1)
    assert not cut.any(), [found[place].get_text() for place in np.nonzero(cut)[0]]
    low = boxes[:, :2] + 0.5
    high = boxes[:, 2:] - 0.5
    over = ((low[:, None] < high[None]) & (low[None] < high[:, None])).all(axis=2)
    pairs = [(found[a].get_text(), found[b].get_text()) for a, b in np.argwhere(over) if a < b]
    assert not pairs


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("crowd", CROWDS)
def test_no_text_is_over_another_or_cut_off(crowd, style):
    with drawing_in(STYLES[style]):
        for name, drawing in draw(CROWDS[crowd](), STYLES[style]).items():
            try:
                check_readable(drawing.figure)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None


@pytest.mark.parametrize("crowd", CROWDS)
def test_a_figure_for_a_paper_fits_a_column(crowd):
    for name, drawing in draw(CROWDS[crowd](), PAPER).items():
        assert drawing.figure.get_figwidth() <= 3.3 + 1e-6, name


@pytest.mark.parametrize("crowd", CROWDS)
def test_what_is_drawn_fills_the_canvas(crowd):
    """Axes and legends reach across most of the figure, in both directions."""
    with drawing_in(SCREEN):
        for name, drawing in draw(CROWDS[crowd]()).items():
            figure = drawing.figure
            figure.draw_without_rendering()
            box = figure.get_tightbbox()
            width, height = figure.get_size_inches()
            assert box.width > 0.75 * width, name
            assert box.height > 0.75 * height, name


def test_papers_have_serif_letters_and_the_names_of_papers(three):
    drawing = draw(three, PAPER)["overview"]
    labels = drawing.figure.axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["EWC-DR", "EWC", "Finetuning"]
    assert {label.get_fontfamily()[0] for label in labels} == {"STIXGeneral"}


def test_a_name_is_never_taken_for_a_formula():
    assert make_plain("$x_1$ \x00") == "\\$x_1\\$ \N{REPLACEMENT CHARACTER}"


# ---- files


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[list[FigureFile], Path]:
    folder = tmp_path_factory.mktemp("figures")
    with warnings.catch_warnings():
        # a glyph that the font lacks is a warning
        warnings.simplefilter("error")
        return write_figures(make_groups("ewc", matrices=[GOOD]), None, folder / "new"), folder


def test_every_figure_is_written_in_three_forms(written):
    figures, folder = written
    assert [figure.name for figure in figures] == ["matrix", "average", "curves", "forgetting"]
    paths = {path for figure in figures for path in (figure.svg, figure.pdf, figure.png)}
    assert paths == set((folder / "new").iterdir())
    for figure in figures:
        assert figure.svg.read_text(encoding="utf-8").startswith("<?xml")
        assert figure.pdf.read_bytes().startswith(b"%PDF")
        width, _ = struct.unpack(">II", figure.png.read_bytes()[16:24])
        assert DOTS_PER_INCH < width <= 6.9 * DOTS_PER_INCH


def test_files_have_no_date(written):
    for figure in written[0]:
        assert "<dc:date>" not in figure.svg.read_text(encoding="utf-8")
        assert b"CreationDate" not in figure.pdf.read_bytes()


def test_the_same_runs_give_the_same_bytes(written):
    figures, folder = written
    groups = make_groups("ewc", matrices=[GOOD])
    with drawing_in(SCREEN):
        again = write_drawing(draw_figures(groups, None, SCREEN)[0], folder / "again")
    for form in ("svg", "pdf", "png"):
        assert getattr(figures[0], form).read_bytes() == getattr(again, form).read_bytes(), form


def test_the_user_s_own_settings_neither_matter_nor_change(three):
    with matplotlib.rc_context(
        {"font.size": 40, "lines.linewidth": 9, "axes.grid": True, "svg.fonttype": "none"}
    ):
        before = dict(matplotlib.rcParams)
        drawing = draw(three)["curves"]
        assert dict(matplotlib.rcParams) == before
    assert find_lines(drawing, "ewc")[0].get_linewidth() == 1.2
    assert max(text.get_fontsize() for text in list_texts(drawing.figure)) < 10
