"""The importance explorer: shares, spread, overlap and a classifier's rows, checked by hand."""

from __future__ import annotations

import io
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import tiny_vilt
import torch
from safetensors.torch import save_file
from test_reports_figures import check_readable
from tiny_run import configure, learn
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, Subset, TensorDataset

from mcit.checkpoint import list_checkpoints, read_checkpoint
from mcit.class_importance import SCORES, view_classifier
from mcit.cli import main
from mcit.errors import DataError
from mcit.estimator import Estimator
from mcit.importance import Importance, measure_importance
from mcit.models.learner import Learner
from mcit.models.resnet import build_resnet
from mcit.models.vilt import ViltEncoder
from mcit.reports.class_table import tabulate_classes
from mcit.reports.explorer import (
    BINS,
    Source,
    add_by_part,
    compare_sources,
    list_shares,
    read_sources,
    summarize_source,
    tabulate_layers,
    tabulate_overlap,
    tabulate_parts,
    tabulate_sources,
)
from mcit.reports.figures.importance import (
    draw_classes,
    draw_histogram,
    draw_layers,
    draw_overlap,
    draw_parts,
)
from mcit.reports.figures.style import PAPER, SCREEN, drawing_in
from mcit.reports.formats import Table
from mcit.reports.layer_groups import find_layer_groups
from mcit.task import Head


def make_source(label: str, values: dict[str, Tensor], cap: float | None = None) -> Source:
    return Source(label, Importance(values, Estimator(cap=cap)))


def texts(table: Table) -> list[list[str]]:
    return [table.texts(row) for row in table.rows]


class Network(nn.Module):
    """Features with BatchNorm, dropout and a classifier, so that mode matters."""

    def __init__(self, classes: int = 4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Dropout(0.5))
        self.fc = nn.Linear(7, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x))


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    model = Network()
    model.body[1].running_mean.normal_()
    return model.train()


@pytest.fixture
def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(40, 5, generator=generator), torch.randint(4, (40,), generator=generator)
    )


def measure(model: nn.Module, loader, index: int, **options) -> dict[str, Tensor]:
    return view_classifier(model, loader, "fc.weight", index, **options).values


def of_class(data: TensorDataset, label: int) -> Subset:
    return Subset(data, (data.tensors[1] == label).nonzero().squeeze(1).tolist())


# ---- the rows of a classifier


def test_it_is_the_importance_of_the_samples_of_that_class(network, data):
    found = measure(network, DataLoader(data, 7), 2)
    for score in SCORES:
        slow = measure_importance(network, DataLoader(of_class(data, 2), 3), score=score).values[
            "fc.weight"
        ]
        assert_close(found[score], slow.double(), rtol=1e-5, atol=1e-9)
        assert found[score].shape == (4, 7)


def test_the_model_comes_back_as_it_was(network, data):
    network.fc.weight.requires_grad_(False)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.get_rng_state()
    measure(network, DataLoader(data, 8), 0)
    assert_close(dict(network.state_dict()), before)
    assert network.training
    assert not network.fc.weight.requires_grad
    assert network.body[0].weight.requires_grad
    assert all(parameter.grad is None for parameter in network.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_vanishing_and_needless_protection_in_numbers():
    """Logits (6, 1, -8) of class 0: EWC sees nothing, reversal and MAS protect the lowest row."""
    model = nn.Sequential(nn.Linear(1, 3, bias=False))
    model[0].weight.data = torch.tensor([[6.0], [1.0], [-8.0]])
    view = view_classifier(model, [(torch.ones(1, 1), torch.tensor([0]))], "0.weight", 0)
    values = {score: value.squeeze(1) for score, value in view.values.items()}
    exact = torch.tensor([6.0, 1.0, -8.0], dtype=torch.float64)
    p, q, length = exact.softmax(0), (-exact).softmax(0), exact.norm()
    own = torch.tensor([1.0, 0, 0], dtype=torch.float64)
    assert_close(values["plain"], (p - own).square(), rtol=1e-4, atol=1e-12)
    assert_close(values["reversed"], (own - q).square(), rtol=1e-4, atol=1e-12)
    assert_close(values["output_norm"], exact.abs() / length, rtol=1e-5, atol=0)
    rest = p / (1 - p[0])
    assert_close(
        values["log_odds"],
        torch.stack([p[0] * 0 + 1, rest[1] ** 2, rest[2] ** 2]),
        rtol=1e-4,
        atol=1e-12,
    )
    assert values["plain"].max() < 1e-4 < 0.99 < values["reversed"][2]
    assert view.confidence == pytest.approx(float(p[0]), rel=1e-5)


def test_a_sample_belongs_to_every_label_it_has(network):
    target = torch.tensor([[0.9, 0, 0, 0], [0, 1.0, 0, 0], [0.3, 0.6, 0, 0]])
    inputs = torch.randn(3, 5, generator=torch.Generator().manual_seed(3))
    view = view_classifier(network, [(inputs, target)], "fc.weight", 0)
    slow = measure_importance(network, [(inputs[[0, 2]], target[[0, 2]])], score="reversed").values[
        "fc.weight"
    ]
    assert view.examples == 2
    assert_close(view.values["reversed"], slow.double(), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    "target", [torch.tensor([0, 1]), torch.eye(4)[:2]], ids=["classes", "labels"]
)
@pytest.mark.parametrize("index", [4, 50, -1])
def test_a_class_that_the_classifier_does_not_have_is_told_with_those_it_has(
    network, target, index
):
    with pytest.raises(
        ValueError, match=f"there is no class {index}: the classifier has 4, from 0 to 3"
    ):
        view_classifier(network, [(torch.zeros(2, 5), target)], "fc.weight", index)


def test_it_stops_after_so_many_samples(network, data):
    view = view_classifier(network, DataLoader(data, 8), "fc.weight", 3, most=2)
    first = Subset(data, (data.tensors[1] == 3).nonzero().squeeze(1).tolist()[:2])
    slow = measure_importance(network, DataLoader(first, 2)).values["fc.weight"]
    assert view.examples == 2
    assert_close(view.values["plain"], slow.double(), rtol=1e-5, atol=1e-9)


def test_what_cannot_be_looked_at_is_named(network, data):
    loader = DataLoader(data, 8)
    few = DataLoader(of_class(data, 1), 8)
    with pytest.raises(ValueError, match="no sample of class 3"):
        view_classifier(network, few, "fc.weight", 3)
    with pytest.raises(ValueError, match=r"'fc.bias' is not the weight of a linear layer"):
        view_classifier(network, loader, "fc.bias", 0)
    with pytest.raises(ValueError, match="one row for all choices"):
        view_classifier(Network(classes=1), loader, "fc.weight", 0)
    twice = nn.Sequential(nn.Linear(5, 5))
    with pytest.raises(ValueError, match="must see each sample once"):
        view_classifier(twice, loader, "0.weight", 0, forward=lambda m, b: (m(m(b[0])), b[1]))


def test_a_classifier_that_could_not_be_looked_at_keeps_no_hook(data):
    twice = nn.Sequential(nn.Linear(5, 5))
    with pytest.raises(ValueError, match="must see each sample once"):
        view_classifier(
            twice, DataLoader(data, 8), "0.weight", 0, forward=lambda m, b: (m(m(b[0])), b[1])
        )
    assert not twice[0]._forward_pre_hooks


def test_the_table_marks_the_true_class_and_sums_its_rows(network, data):
    view = view_classifier(network, DataLoader(data, 8), "fc.weight", 2)
    table = tabulate_classes(view, "classifier", "here")
    assert [column.head for column in table.columns] == [
        "class",
        "EWC",
        "EWC %",
        "MAS",
        "MAS %",
        "EWC-DR",
        "EWC-DR %",
        "log-odds",
        "log-odds %",
    ]
    assert [row.label for row in table.rows] == ["0", "1", "2 (true)", "3"]
    for number, score in enumerate(SCORES):
        sums = view.values[score].sum(dim=1)
        shown = [cell.mean for cell in table.rows[2].cells[2 * number : 2 * number + 2]]
        assert shown == pytest.approx([float(sums[2]), float(100 * sums[2] / sums.sum())])
    ratio = float(view.values["plain"].sum() / view.values["log_odds"].sum())
    assert f"The importance of EWC is {ratio:.2g} times that of log-odds." in table.notes[0].text


def test_of_many_classes_the_largest_are_shown_and_the_rest_is_summed():
    torch.manual_seed(4)
    model = Network(classes=40).eval()
    batch = torch.randn(6, 5), torch.full((6,), 39)
    view = view_classifier(model, [batch], "fc.weight", 39)
    table = tabulate_classes(view, "classifier", "here")
    assert len(table.rows) == 17
    assert table.rows[-2].label == "39 (true)"
    assert table.rows[-1].label == "24 others"
    for number, score in enumerate(SCORES):
        sums = [row.cells[2 * number].mean for row in table.rows]
        shares = [row.cells[2 * number + 1].mean for row in table.rows]
        assert sum(sums) == pytest.approx(float(view.values[score].sum()))
        assert sum(shares) == pytest.approx(100)


# ---- where a parameter is


def test_every_parameter_of_our_vilt_has_a_modality():
    learner = Learner(ViltEncoder(tiny_vilt.make_model()))
    learner.grow(Head("vqa", outputs=3))
    places = find_layer_groups(name for name, _ in learner.named_parameters())
    assert len(places) == len(list(learner.parameters()))
    layers = list(dict.fromkeys(place.layer for place in places.values()))
    assert layers == [
        "text embeddings",
        "image embeddings",
        "modality embeddings",
        "layer 0",
        "layer 1",
        "final norm",
        "pooler",
        "head vqa",
    ]
    assert (
        places["encoder.vilt.embeddings.text_embeddings.position_embeddings.weight"].part == "text"
    )
    assert places["encoder.vilt.embeddings.position_embeddings"].part == "image"
    assert {place.part for place in places.values()} == {"text", "image", "fusion", "head"}


def test_every_parameter_of_our_resnet_has_a_stage():
    learner = Learner(build_resnet(width=2))
    learner.grow(Head("classes", outputs=3, layout="linear"))
    places = find_layer_groups(name for name, _ in learner.named_parameters())
    parts = list(dict.fromkeys(place.part for place in places.values()))
    assert parts == ["stem", "stage 1", "stage 2", "stage 3", "stage 4", "head"]
    assert places["encoder.blocks.7.conv1.weight"].layer == "stage 4, block 7"


def test_other_networks_are_placed_by_their_names():
    names = ["conv1.weight", "layer1.0.conv1.weight", "layer4.1.bn2.bias", "fc.weight"]
    assert [place.layer for place in find_layer_groups(names).values()] == [
        "stem",
        "stage 1, block 0",
        "stage 4, block 1",
        "head",
    ]
    names = [
        "vision_tower.encoder.layers.3.w",
        "multi_modal_projector.w",
        "language_model.model.layers.10.w",
        "language_model.lm_head.weight",
    ]
    parts = [place.part for place in find_layer_groups(names).values()]
    assert parts == ["image", "fusion", "text", "text"]
    names = ["model.h.10.w", "model.h.2.w", "model.wte.weight", "lm_head.weight"]
    layers = [place.layer for place in find_layer_groups(names).values()]
    assert layers == ["model.h.2", "model.h.10", "model.wte", "head"]


# ---- shares, spread, overlap


def test_shares_by_layer_and_part_add_up():
    values = {
        "encoder.stem.0.weight": torch.tensor([1.0, 3.0]),
        "encoder.blocks.0.conv1.weight": torch.tensor([4.0, 0.0, 0.0]),
        "heads.classes.layers.0.weight": torch.tensor([[2.0, 1e-6]]),
    }
    summary = summarize_source(make_source("a", values, cap=3.0))
    assert [(group.layer, size) for group, size in summary.sizes.items()] == [
        ("stem", 2),
        ("stage 1, block 0", 3),
        ("head classes", 2),
    ]
    weights, shares = list_shares([summary])
    assert list(shares.values()) == pytest.approx([40, 40, 20], rel=1e-4)
    assert add_by_part(shares) == pytest.approx({"stem": 40, "stage 1": 40, "head": 20}, rel=1e-4)
    assert list(weights.values()) == pytest.approx([200 / 7, 300 / 7, 200 / 7])
    assert summary.zero == pytest.approx(200 / 7)
    # at most a thousandth of the mean, 10/7
    assert summary.near_zero == pytest.approx(300 / 7)
    assert summary.capped == pytest.approx(200 / 7)
    assert texts(tabulate_layers([summary]))[0] == ["stem", "stem", "28.57", "40.00"]
    assert texts(tabulate_sources([summary]))[0][1:4] == ["7", "1.43", "4"]


def test_the_histogram_counts_every_weight_that_has_importance():
    values = {"w": torch.tensor([1.1e-4, 1.5e-4, 1e-30, 0.0, 2.0, 1e9])}
    counts = summarize_source(make_source("a", values)).histogram * 6 / 100
    assert counts.sum() == pytest.approx(5)
    assert counts[np.searchsorted(BINS, -4, side="right") - 1] == pytest.approx(2)
    # what is smaller or larger than any bin
    assert counts[0] == counts[-1] == pytest.approx(1)


def test_without_a_cap_nothing_is_capped():
    assert math.isnan(summarize_source(make_source("a", {"w": torch.ones(3)})).capped)


def test_overlap_by_hand():
    a = {"w": torch.arange(20.0), "b": torch.zeros(10)}
    b = {"w": torch.arange(20.0).flip(0), "b": torch.zeros(10)}
    c = {"w": torch.tensor([0.0] * 17 + [5.0, 1.0, 9.0]), "b": torch.zeros(10)}
    pairs = zip("abc", (a, b, c), strict=True)
    found = compare_sources([make_source(name, values) for name, values in pairs])
    assert found.weights == 30
    assert np.diag(found.cosine) == pytest.approx(1.0)
    assert np.diag(found.top) == pytest.approx(1.0)
    assert found.cosine[0, 1] == pytest.approx(
        sum(i * (19 - i) for i in range(20)) / sum(i * i for i in range(20))
    )
    assert found.top[0, 1] == 0
    # the three largest are the same
    assert found.top[0, 2] == 1
    expected = ["a and c", f"{found.cosine[0, 2]:.3f}", "100.0"]
    assert texts(tabulate_overlap(found))[1] == expected


def test_weights_tied_at_a_cap_share_their_places():
    flat = make_source("flat", {"w": torch.full((100,), 1e-4)})
    peaked = make_source("peaked", {"w": torch.cat([torch.ones(10), torch.zeros(90)])})
    found = compare_sources([flat, peaked])
    assert found.top[0, 0] == pytest.approx(1.0)
    # as good as chance
    assert found.top[0, 1] == pytest.approx(0.1)


def test_a_head_that_grew_is_compared_in_the_rows_both_have():
    early, late = torch.rand(2, 3), torch.rand(5, 3)
    late[:2] = early
    sources = [make_source("a", {"w": early}), make_source("b", {"w": late, "x": torch.ones(4)})]
    found = compare_sources(sources)
    assert found.weights == 6
    assert found.cosine[0, 1] == pytest.approx(1.0)


def test_different_networks_cannot_be_compared():
    sources = [make_source("a", {"v": torch.ones(2)}), make_source("b", {"w": torch.ones(2)})]
    with pytest.raises(DataError, match="a, b have no parameter in common"):
        compare_sources(sources)


# ---- files


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Return a finished run, with its last checkpoint and the importance of earlier tasks."""
    folder = tmp_path_factory.mktemp("explorer") / "tiny"
    learn(
        configure("shapes:3x2", "ewc", method__strength=1.0, method__estimator={"cap": 1e-3}),
        folder,
    )
    return folder


def save_importance(path: Path, seed: int, **changes) -> Importance:
    generator = torch.Generator().manual_seed(seed)
    values = {
        "conv1.weight": torch.rand(4, 3, generator=generator),
        "fc.weight": torch.rand(3, 4, generator=generator),
    }
    made = Importance(values, Estimator(score="reversed", cap=0.5), 64)
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save(path, **changes)
    return made


def test_files_of_importance_are_read_in_the_order_of_the_tasks(tmp_path):
    for number, name in enumerate(("vqa", "nlvr2", "data[10-19]")):
        made = save_importance(tmp_path / "importance" / f"{number:02d}-{name}.safetensors", number)
    sources = read_sources([tmp_path])
    assert [source.label for source in sources] == ["vqa", "nlvr2", "data[10-19]"]
    assert_close(dict(sources[2].values), dict(made.values))
    assert sources[2].cap == 0.5
    assert sources[2].importance.describe() == made.describe()


def test_a_run_keeps_the_importance_of_every_task_that_another_follows(run):
    first, second = read_sources([run])
    assert [first.label, second.label] == ["shapes[0-1]", "shapes[2-3]"]
    state = read_checkpoint(list_checkpoints(run / "checkpoints")[0]).method
    for name, held in state["importance"].items():
        grown = torch.zeros_like(
            second.values[name]
        )  # the head had fewer rows after the first task
        grown[: len(first.values[name])] = first.values[name]
        assert_close(grown + second.values[name], held)


def test_a_file_that_holds_no_importance_is_refused(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(DataError, match=r"weights.safetensors is not a file of importance"):
        read_sources([tmp_path / "weights.safetensors"])
    (tmp_path / "broken.safetensors").write_bytes(b"no such thing")
    with pytest.raises(DataError, match=r"broken.safetensors is not a file of importance"):
        read_sources([tmp_path / "broken.safetensors"])
    with pytest.raises(DataError, match="no importance at"):
        read_sources([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="the folder of a run that has importance/"):
        read_sources([tmp_path / "empty"])


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "vqa.safetensors"
    save_importance(path, 0)
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x40
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match="is damaged"):
        read_sources([path])


def test_tasks_of_several_runs_are_told_apart_by_the_runs(tmp_path):
    for run in ("ewc", "ewc_dr"):
        for number, task in enumerate(("vqa", "nlvr2"), start=1):
            save_importance(
                tmp_path / run / "importance" / f"{number:02d}-{task}.safetensors", number
            )
    found = read_sources([tmp_path / "ewc", tmp_path / "ewc_dr"])
    assert [source.label for source in found] == [
        "ewc vqa",
        "ewc nlvr2",
        "ewc_dr vqa",
        "ewc_dr nlvr2",
    ]
    assert [source.label for source in read_sources([tmp_path / "ewc"])] == ["vqa", "nlvr2"]


def test_weights_are_counted_with_a_head_as_large_as_it_became():
    body = torch.ones(6)
    stem = "encoder.stem.0.weight"
    head = "heads.classes.layers.0.weight"
    summaries = [
        summarize_source(make_source("a", {stem: body, head: body[:2]})),
        summarize_source(make_source("b", {stem: body, head: body[:4]})),
        summarize_source(make_source("c", {stem: body})),
    ]
    assert list(list_shares(summaries)[0].values()) == [60.0, 40.0]
    assert texts(tabulate_parts(summaries)) == [
        ["encoder", "60.00", "75.00", "60.00", "100.00"],
        ["head", "40.00", "25.00", "40.00", "–"],
    ]


# ---- figures


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    generator = torch.Generator().manual_seed(5)
    names = [
        "encoder.stem.0.weight",
        "encoder.blocks.0.conv1.weight",
        "heads.classes.layers.0.weight",
    ]
    return [
        make_source(label, {name: torch.rand(50, generator=generator) ** 6 for name in names}, cap)
        for label, cap in (("vqa", None), ("a source with a rather long name", 0.5))
    ]


@pytest.fixture(scope="module")
def summaries(sources):
    return [summarize_source(source) for source in sources]


@pytest.fixture(params=[SCREEN, PAPER], ids=["screen", "paper"])
def style(request):
    with drawing_in(request.param):
        yield request.param


def test_layers_are_drawn_with_their_shares(summaries, style):
    drawing = draw_layers(summaries, style)
    axes, bar = drawing.figure.axes
    drawn = axes.images[0].get_array()
    assert drawn.shape == (3, 3)
    for column, shares in enumerate(list_shares(summaries)):
        assert list(drawn[:, column]) == pytest.approx(list(shares.values()))
    assert len(axes.texts) == 9
    assert bar.get_ylabel() == "percent"
    check_readable(drawing.figure)


def test_parts_are_drawn_with_their_shares(summaries, style):
    drawing = draw_parts(summaries, style)
    widths = np.array([bar.get_width() for bar in drawing.figure.axes[0].patches]).reshape(3, 3)
    for column, shares in enumerate(list_shares(summaries)):
        assert list(widths[:, column]) == pytest.approx(list(add_by_part(shares).values()))
    check_readable(drawing.figure)


def test_numbers_on_bars_contrast_with_them(summaries, style):
    (axes,) = draw_parts(summaries, style).figure.axes
    inks = [text.get_color() for text in axes.texts]
    colors = [container.patches[0].get_facecolor()[:3] for container in axes.containers]
    # one color for the bars of a part, and the same for their numbers
    for place, color in enumerate(colors):
        levels = {"black": 0.0, "white": 1.0}
        gaps = {ink: abs(luminance(color) - level) for ink, level in levels.items()}
        assert set(inks[3 * place : 3 * place + 3]) == {max(gaps, key=gaps.get)}


def luminance(color: tuple[float, float, float]) -> float:
    """Return the brightness of a color as the eye sees it, by Rec. 601."""
    return float(np.dot(color, (0.299, 0.587, 0.114)))


def test_the_histogram_is_drawn_in_percent_of_the_weights(summaries, style):
    drawing = draw_histogram(summaries, style)
    (axes,) = drawing.figure.axes
    heights, edges, _ = axes.patches[0].get_data()
    assert list(heights) == pytest.approx(list(summaries[0].histogram))
    assert list(edges) == pytest.approx(list(10**BINS))
    # the cap of the second
    assert [line.get_xdata()[0] for line in axes.lines] == [0.5]
    assert axes.get_xscale() == "log"
    assert axes.get_xlim()[0] > edges[0]
    check_readable(drawing.figure)


def test_overlaps_are_drawn_as_they_are(sources, style):
    overlap = compare_sources(sources)
    drawing = draw_overlap(overlap, style)
    cosine, top = drawing.figure.axes[:2]
    assert_close(np.asarray(cosine.images[0].get_array()), overlap.cosine)
    assert_close(np.asarray(top.images[0].get_array()), 100 * overlap.top)
    check_readable(drawing.figure)


def test_a_classifier_is_drawn_on_one_scale_with_the_true_class_marked(network, data, style):
    view = view_classifier(network, DataLoader(data, 8), "fc.weight", 2)
    drawing = draw_classes(view, "classifier", "here", style)
    maps = [axes for axes in drawing.figure.axes if axes.images]
    titles = [axes.get_title(loc="left").split(":")[0] for axes in maps]
    assert titles == ["EWC", "MAS", "EWC-DR", "log-odds"]
    assert len({(axes.images[0].norm.vmin, axes.images[0].norm.vmax) for axes in maps}) == 1
    for axes, score in zip(maps, SCORES, strict=True):
        assert_close(torch.as_tensor(np.asarray(axes.images[0].get_array())), view.values[score])
        own = axes.get_yticklabels()[2]
        assert own.get_text() == f"2 (true): {view.shares(score)[2]:.0f} %"
        assert own.get_weight() == "bold"
    check_readable(drawing.figure)
    with warnings.catch_warnings():
        # a glyph that the font lacks is a warning
        warnings.simplefilter("error")
        drawing.figure.savefig(io.BytesIO(), format="png")


# ---- the command


def test_explore_prints_tables_and_writes_figures(run, tmp_path, capsys):
    output = tmp_path / "out"
    assert main(["explore", str(run), "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "Importance by layer" in printed
    assert "stage 4, block 7" in printed
    names = {path.name for path in output.iterdir()}
    assert {
        "importance.md",
        "importance-layers.csv",
        "importance-parts.svg",
        "importance-histogram.pdf",
    } <= names
    assert "Overlap" in printed
    assert "importance-overlap.png" in names


def test_explore_looks_at_the_classifier_of_a_run(run, tmp_path, capsys):
    output = tmp_path / "out"
    arguments = [
        "explore",
        str(run),
        "--task",
        "shapes[2-3]",
        "--class",
        "3",
        "--samples",
        "5",
        "--output",
        str(output),
    ]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "3 (true)" in printed
    assert "after shapes[4-5]: 5 samples of class 3" in printed
    assert (output / "classifier-shapes-2-3-class-3.png").is_file()
    rows = (output / "classifier-shapes-2-3-class-3.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "class,EWC,EWC %,MAS,MAS %,EWC-DR,EWC-DR %,log-odds,log-odds %"
    assert len(rows) == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "shapes[2-3]"], "--task and --class go together"),
        (
            ["--task", "shapes[2-3]", "--class", "0", "--samples", "0"],
            "--samples must be at least 1",
        ),
        (
            ["--task", "shapes[2-4]", "--class", "0"],
            "unknown task 'shapes[2-4]'; did you mean 'shapes[2-3]'?",
        ),
        (
            ["--task", "shapes[2-3]", "--class", "5"],
            "shapes[2-3]: the data have no sample of class 5",
        ),
        (
            ["--task", "shapes[2-3]", "--class", "50"],
            "there is no class 50: the classifier has 6, from 0 to 5",
        ),
        (["--class", "0"], "--task and --class go together"),
        (["--output", "/proc/x"], "/proc/x cannot be written to"),
    ],
)
def test_what_explore_cannot_do_it_says(run, options, message, capsys):
    assert main(["explore", str(run), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_run_without_a_checkpoint_is_said_to_have_none(run, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text(
        (run / "config.yaml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    assert main(["explore", str(tmp_path), "--task", "shapes[0-1]", "--class", "0"]) == 2
    assert "has no checkpoints/, so only its scores are left" in capsys.readouterr().err


def test_a_run_that_keeps_no_importance_is_refused(tmp_path, capsys):
    learn(configure("shapes:3x2", "finetune", tasks__shapes__recipe__epochs=0), tmp_path / "plain")
    assert main(["explore", str(tmp_path / "plain")]) == 2
    assert "there is no importance at" in capsys.readouterr().err
