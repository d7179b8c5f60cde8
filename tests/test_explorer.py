"""The importance explorer: shares, spread and overlap by hand, and a classifier's rows against the slow estimate."""

from __future__ import annotations

import io
import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import tiny_vilt
import torch
from safetensors.torch import save_file
from tiny_run import configure, learn
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, Subset, TensorDataset

from mcit.checkpoint import CheckpointError, list_checkpoints, read_checkpoint
from mcit.cli import main
from mcit.consolidation import ConsolidationManager
from mcit.estimator import Estimator
from mcit.importance import Importance, measure_importance
from mcit.models.learner import Learner
from mcit.models.resnet import build_resnet
from mcit.models.vilt import ViltEncoder
from mcit.reports.classifier import SCORES, view_classifier
from mcit.reports.explorer import (
    BINS,
    Source,
    add_up,
    classifier_importance,
    compare,
    read_sources,
    summarise,
    weigh_layers,
)
from mcit.reports.explorer_tables import (
    tabulate_classes,
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
from mcit.reports.figures.style import house_style
from mcit.reports.places import locate
from mcit.reports.restored import read_newest
from mcit.runner.snapshot import read_method
from mcit.task import DataError, Head


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


def of_class(data: TensorDataset, label: int) -> Subset:
    return Subset(data, (data.tensors[1] == label).nonzero().squeeze(1).tolist())


# ---- the rows of a classifier


def test_it_is_the_importance_of_the_samples_of_that_class(network, data):
    found = classifier_importance(network, DataLoader(data, 7), "fc.weight", 2)
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
    classifier_importance(network, DataLoader(data, 8), "fc.weight", 0)
    assert_close(dict(network.state_dict()), before)
    assert network.training
    assert not network.fc.weight.requires_grad
    assert network.body[0].weight.requires_grad
    assert all(parameter.grad is None for parameter in network.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_vanishing_and_needless_protection_in_numbers():
    """Logits (6, 1, -8) of a sample of class 0: EWC sees nothing, reversal and MAS protect the lowest row."""
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


def test_a_classifier_that_sees_several_places_has_one_gradient_per_sample(data):
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.stack([x, x.roll(1, 1), x.square()], dim=1)).tanh().sum(dim=1)

    torch.manual_seed(2)
    model = Tokens()
    found = classifier_importance(
        model, DataLoader(data, 9), "fc.weight", 1, ("plain", "output_norm")
    )
    for score, value in found.items():
        slow = measure_importance(model, DataLoader(of_class(data, 1), 5), score=score).values[
            "fc.weight"
        ]
        assert_close(value, slow.double(), rtol=1e-5, atol=1e-9)


def test_a_sample_belongs_to_every_label_it_has(network):
    target = torch.tensor([[0.9, 0, 0, 0], [0, 1.0, 0, 0], [0.3, 0.6, 0, 0]])
    inputs = torch.randn(3, 5, generator=torch.Generator().manual_seed(3))
    view = view_classifier(network, [(inputs, target)], "fc.weight", 0, ("reversed",))
    slow = measure_importance(network, [(inputs[[0, 2]], target[[0, 2]])], score="reversed").values[
        "fc.weight"
    ]
    assert view.examples == 2
    assert view.multi_label
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
    view = view_classifier(network, DataLoader(data, 8), "fc.weight", 3, ("plain",), most=2)
    first = Subset(data, (data.tensors[1] == 3).nonzero().squeeze(1).tolist()[:2])
    slow = measure_importance(network, DataLoader(first, 2)).values["fc.weight"]
    assert view.examples == 2
    assert_close(view.values["plain"], slow.double(), rtol=1e-5, atol=1e-9)


def test_what_cannot_be_looked_at_is_named(network, data):
    loader = DataLoader(data, 8)
    few = DataLoader(of_class(data, 1), 8)
    with pytest.raises(ValueError, match=r"no sample of class 3 \(classes: 1\)"):
        classifier_importance(network, few, "fc.weight", 3)
    with pytest.raises(ValueError, match=r"'fc.bias' is no weight of a linear layer .*fc.weight"):
        classifier_importance(network, loader, "fc.bias", 0)
    with pytest.raises(ValueError, match="one row for all choices"):
        classifier_importance(Network(classes=1), loader, "fc.weight", 0)
    twice = nn.Sequential(nn.Linear(5, 5))
    with pytest.raises(ValueError, match="must see each sample once: 2 calls"):
        classifier_importance(twice, loader, "0.weight", 0, forward=lambda m, b: (m(m(b[0])), b[1]))


def test_the_table_marks_the_true_class_and_sums_its_rows(network, data):
    view = view_classifier(network, DataLoader(data, 8), "fc.weight", 2)
    table = tabulate_classes(view)
    assert table.header == [
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
    assert [row[0] for row in table.rows] == ["0", "1", "2 (true)", "3"]
    assert table.best == {(2, column) for column in range(9)}
    for number, score in enumerate(SCORES):
        sums = view.values[score].sum(dim=1)
        cells = table.rows[2][1 + 2 * number : 3 + 2 * number]
        assert cells == [f"{sums[2]:.3g}", f"{100 * sums[2] / sums.sum():.1f}"]
    ratio = float(view.values["plain"].sum() / view.values["log_odds"].sum())
    assert f"The importance of EWC is {ratio:.2g} times that of log-odds." in " ".join(table.notes)


def test_of_many_classes_the_largest_are_shown_and_the_rest_is_summed():
    torch.manual_seed(4)
    model = Network(classes=40).eval()
    batch = torch.randn(6, 5), torch.full((6,), 39)
    view = view_classifier(model, [batch], "fc.weight", 39)
    table = tabulate_classes(view)
    assert len(table.rows) == 17
    assert table.rows[-2][0] == "39 (true)"
    assert table.rows[-1][0] == "24 others"
    for number, score in enumerate(SCORES):
        sums, shares = ([float(row[place + 2 * number]) for row in table.rows] for place in (1, 2))
        assert sum(sums) == pytest.approx(float(view.values[score].sum()), rel=0.01)
        assert sum(shares) == pytest.approx(100, abs=1.0)


# ---- where a parameter is


def test_every_parameter_of_our_vilt_has_a_modality():
    learner = Learner(ViltEncoder(tiny_vilt.make_model()))
    learner.grow(Head("vqa", outputs=3))
    places = locate(name for name, _ in learner.named_parameters())
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
    places = locate(name for name, _ in learner.named_parameters())
    parts = list(dict.fromkeys(place.part for place in places.values()))
    assert parts == ["stem", "stage 1", "stage 2", "stage 3", "stage 4", "head"]
    assert places["encoder.blocks.7.conv1.weight"].layer == "stage 4, block 2"


def test_other_networks_are_placed_by_their_names():
    names = ["conv1.weight", "layer1.0.conv1.weight", "layer4.1.bn2.bias", "fc.weight"]
    assert [place.layer for place in locate(names).values()] == [
        "stem",
        "stage 1, block 1",
        "stage 4, block 2",
        "head",
    ]
    names = ["model.h.10.w", "model.h.2.w", "model.wte.weight", "lm_head.weight"]
    layers = [place.layer for place in locate(names).values()]
    assert layers == ["model.h.2", "model.h.10", "model.wte", "head"]


# ---- shares, spread, overlap


def test_shares_by_layer_and_part_add_up():
    values = {
        "encoder.stem.0.weight": torch.tensor([1.0, 3.0]),
        "encoder.blocks.0.conv1.weight": torch.tensor([4.0, 0.0, 0.0]),
        "heads.classes.layers.0.weight": torch.tensor([[2.0, 1e-6]]),
    }
    summary = summarise(Source("a", values, "by hand", cap=3.0))
    assert [
        (layer.place.layer, layer.weights, layer.zero, layer.capped) for layer in summary.layers
    ] == [
        ("stem", 2, 0, 1),
        ("stage 1, block 1", 3, 2, 1),
        ("head classes", 2, 0, 0),
    ]
    assert [summary.share(layer) for layer in summary.layers] == pytest.approx(
        [40, 40, 20], rel=1e-4
    )
    assert summary.parts() == pytest.approx({"stem": 40, "stage 1": 40, "head": 20}, rel=1e-4)
    assert summary.share_of("zero") == pytest.approx(200 / 7)
    assert summary.share_of("near_zero") == pytest.approx(
        300 / 7
    )  # at most a thousandth of the mean, 10/7
    assert summary.share_of("capped") == pytest.approx(200 / 7)
    assert tabulate_layers([summary]).rows[0] == ["stem", "stem", "28.57", "40.00"]
    assert tabulate_sources([summary]).rows[0][1:4] == ["7", "1.43", "4"]


def test_the_histogram_counts_every_weight_that_has_importance():
    values = {"w": torch.tensor([1.1e-4, 1.5e-4, 1e-30, 0.0, 2.0, 1e9])}
    counts = summarise(Source("a", values, "")).counts
    assert counts.sum() == 5
    assert counts[np.searchsorted(BINS, -4, side="right") - 1] == 2
    assert counts[0] == counts[-1] == 1  # what is smaller or larger than any bin


def test_without_a_cap_nothing_is_capped():
    assert summarise(Source("a", {"w": torch.ones(3)}, "")).share_of("capped") is None


def test_overlap_by_hand():
    a = {"w": torch.arange(20.0), "b": torch.zeros(10)}
    b = {"w": torch.arange(20.0).flip(0), "b": torch.zeros(10)}
    c = {"w": torch.tensor([0.0] * 17 + [5.0, 1.0, 9.0]), "b": torch.zeros(10)}
    found = compare(
        [Source(name, values, "") for name, values in zip("abc", (a, b, c), strict=True)]
    )
    assert found.weights == 30
    assert np.diag(found.cosine) == pytest.approx(1.0)
    assert np.diag(found.top) == pytest.approx(1.0)
    assert found.cosine[0, 1] == pytest.approx(
        sum(i * (19 - i) for i in range(20)) / sum(i * i for i in range(20))
    )
    assert found.top[0, 1] == 0
    assert found.top[0, 2] == 1  # the three largest are the same
    assert tabulate_overlap(found).rows[1] == ["a and c", f"{found.cosine[0, 2]:.3f}", "100.0"]


def test_weights_tied_at_a_cap_share_their_places():
    flat = Source("flat", {"w": torch.full((100,), 1e-4)}, "")
    peaked = Source("peaked", {"w": torch.cat([torch.ones(10), torch.zeros(90)])}, "")
    found = compare([flat, peaked])
    assert found.top[0, 0] == pytest.approx(1.0)
    assert found.top[0, 1] == pytest.approx(0.1)  # as good as chance


def test_a_head_that_grew_is_compared_in_the_rows_both_have():
    early, late = torch.rand(2, 3), torch.rand(5, 3)
    late[:2] = early
    found = compare(
        [Source("a", {"w": early}, ""), Source("b", {"w": late, "extra": torch.ones(4)}, "")]
    )
    assert found.weights == 6
    assert found.cosine[0, 1] == pytest.approx(1.0)


def test_different_networks_cannot_be_compared():
    with pytest.raises(DataError, match="a, b have no parameter in common"):
        compare([Source("a", {"v": torch.ones(2)}, ""), Source("b", {"w": torch.ones(2)}, "")])


# ---- files


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A finished run, with its last checkpoint and the importance of the tasks that others followed."""
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
    assert sources[2].description == made.describe()


def test_a_manager_s_file_is_read_too(tmp_path):
    model = nn.Linear(3, 2)
    manager = ConsolidationManager(model.named_parameters(), strength=10.0)
    values = {
        name: torch.full_like(parameter, 0.25) for name, parameter in model.named_parameters()
    }
    manager.consolidate(Importance(values, Estimator(cap=0.25), 8))
    manager.save(tmp_path / "held.safetensors")
    (source,) = read_sources([tmp_path / "held.safetensors"])
    assert_close(dict(source.values), values)
    assert "1 tasks merged by 'sum'" in source.description
    assert summarise(source).share_of("capped") == pytest.approx(100)


def test_a_run_keeps_the_importance_of_every_task_that_another_follows(run):
    first, second = read_sources([run])
    assert [first.label, second.label] == ["shapes[0-1]", "shapes[2-3]"]
    state = read_method(read_checkpoint(list_checkpoints(run / "checkpoints")[0]))
    for name, held in state["importance"].items():
        grown = torch.zeros_like(
            second.values[name]
        )  # the head had fewer rows after the first task
        grown[: len(first.values[name])] = first.values[name]
        assert_close(grown + second.values[name], held)


def test_a_run_s_checkpoint_tells_what_its_method_holds(run, tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "checkpoints").symlink_to(
        run / "checkpoints"
    )  # and no files of importance
    (source,) = read_sources([tmp_path / "tiny"])
    assert source.label == "tiny (held)"
    summary = summarise(source)
    assert {layer.place.part for layer in summary.layers} >= {"stem", "stage 4", "head"}
    assert 0 < summary.share_of("capped") < 100


def test_what_holds_no_importance_is_refused(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(DataError, match=r"weights.safetensors is of the form None"):
        read_sources([tmp_path / "weights.safetensors"])
    (tmp_path / "broken.safetensors").write_bytes(b"no such thing")
    with pytest.raises(DataError, match=r"broken.safetensors is damaged"):
        read_sources([tmp_path / "broken.safetensors"])
    with pytest.raises(DataError, match="no importance at"):
        read_sources([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="neither a folder importance/ nor a checkpoint"):
        read_sources([tmp_path / "empty"])


def test_two_files_of_one_name_are_refused(tmp_path):
    for folder in ("a", "b"):
        save_importance(tmp_path / folder / "vqa.safetensors", 0)
    with pytest.raises(DataError, match="several sources are called 'vqa'"):
        read_sources([tmp_path / "a" / "vqa.safetensors", tmp_path / "b" / "vqa.safetensors"])


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
    small = summarise(
        Source("a", {"encoder.stem.0.weight": body, "heads.classes.layers.0.weight": body[:2]}, "")
    )
    grown = summarise(
        Source("b", {"encoder.stem.0.weight": body, "heads.classes.layers.0.weight": body[:4]}, "")
    )
    alone = summarise(Source("c", {"encoder.stem.0.weight": body}, ""))
    assert list(weigh_layers([small, grown, alone]).values()) == [60.0, 40.0]
    assert tabulate_parts([small, grown, alone]).rows == [
        ["encoder", "60.00", "75.00", "60.00", "100.00"],
        ["head", "40.00", "25.00", "40.00", "–"],
    ]


# ---- figures


@pytest.fixture(scope="module")
def summaries():
    generator = torch.Generator().manual_seed(5)
    names = [
        "encoder.stem.0.weight",
        "encoder.blocks.0.conv1.weight",
        "heads.classes.layers.0.weight",
    ]
    sources = [
        Source(label, {name: torch.rand(50, generator=generator) ** 6 for name in names}, "", cap)
        for label, cap in (("vqa", None), ("a source with a rather long name", 0.5))
    ]
    return sources, [summarise(source) for source in sources]


def test_layers_are_drawn_with_their_shares(summaries):
    with house_style():
        (axes,) = draw_layers(summaries[1]).figure.axes
    drawn = axes.images[0].get_array()
    assert drawn.shape == (3, 3)
    for column, summary in enumerate(summaries[1], start=1):
        assert list(drawn[:, column]) == pytest.approx(
            [summary.share(layer) for layer in summary.layers]
        )
    assert len(axes.texts) == 9


def test_parts_are_drawn_with_their_shares(summaries):
    with house_style():
        (axes,) = draw_parts(summaries[1]).figure.axes
    widths = [bar.get_width() for bar in axes.patches]
    assert widths[:3] == pytest.approx(list(add_up(weigh_layers(summaries[1])).values()))
    assert widths[3:6] == pytest.approx(list(summaries[1][0].parts().values()))


def test_the_histogram_is_drawn_in_percent_of_the_weights(summaries):
    with house_style():
        drawing = draw_histogram(summaries[1])
    (axes,) = drawing.figure.axes
    heights, edges, _ = axes.patches[0].get_data()
    counts = summaries[1][0].counts
    first = int(np.searchsorted(BINS, math.log10(edges[0]) - 1e-9))
    assert list(heights) == pytest.approx(list(100 * counts[first : first + len(heights)] / 150))
    assert [line.get_xdata()[0] for line in axes.lines] == [0.5]  # the cap of the second
    assert axes.get_xscale() == "log"


def test_overlaps_are_drawn_as_they_are(summaries):
    overlap = compare(summaries[0])
    with house_style():
        cosine, top = draw_overlap(overlap).figure.axes
    assert_close(np.asarray(cosine.images[0].get_array()), overlap.cosine)
    assert_close(np.asarray(top.images[0].get_array()), 100 * overlap.top)


def test_a_classifier_is_drawn_on_one_scale_with_the_true_class_marked(network, data):
    view = view_classifier(network, DataLoader(data, 8), "fc.weight", 2)
    with house_style():
        drawing = draw_classes(view)
    maps = [axes for axes in drawing.figure.axes if axes.images]
    assert [axes.get_title(loc="left").split(":")[0] for axes in maps] == [
        "EWC",
        "MAS",
        "EWC-DR",
        "log-odds",
    ]
    assert len({(axes.images[0].norm.vmin, axes.images[0].norm.vmax) for axes in maps}) == 1
    for axes, score in zip(maps, SCORES, strict=True):
        assert_close(torch.as_tensor(np.asarray(axes.images[0].get_array())), view.values[score])
        assert axes.get_yticklabels()[2].get_text() == "▶ 2"
    shares = [axes for axes in drawing.figure.axes if axes.get_title(loc="left") == "% of sum"]
    assert [bar.get_width() for bar in shares[1].patches] == pytest.approx(
        view.shares("output_norm").tolist()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a glyph that the font lacks is a warning
        drawing.figure.savefig(io.BytesIO(), format="png")


# ---- the command


def test_explore_prints_tables_and_writes_figures(run, tmp_path, capsys):
    output = tmp_path / "out"
    assert main(["explore", str(run), "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "Importance by layer" in printed
    assert "stage 4, block 2" in printed
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
    assert "after shapes[4-5], 5 samples of class 3" in printed
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
            "shapes[2-3]: the data have no sample of class 5 (classes: 2, 3)",
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
    with pytest.raises(CheckpointError, match="has no checkpoints/, so that its network is gone"):
        read_newest(tmp_path)
    assert main(["explore", str(tmp_path), "--task", "shapes[0-1]", "--class", "0"]) == 2
    assert "run it again" in capsys.readouterr().err


def test_a_run_that_holds_nothing_is_said_to(tmp_path, capsys):
    learn(configure("shapes:3x2", "finetune", tasks__shapes__recipe__epochs=0), tmp_path / "plain")
    assert (
        json.loads((tmp_path / "plain" / "scores.json").read_text(encoding="utf-8"))["method"]
        == "finetune"
    )
    assert main(["explore", str(tmp_path / "plain")]) == 2
    assert "a run of a method that holds no importance" in capsys.readouterr().err
