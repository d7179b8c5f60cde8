"""iCaRL, DER++ and LwF-MC: their losses and choices, by the public code's numbers and by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tiny_run import assert_identical, configure, learn, resolve
from torch.testing import assert_close

from mcit.draws import draw_uniform
from mcit.errors import ConfigError
from mcit.methods.der import compare_logits
from mcit.methods.icarl import herd, score_nearest
from mcit.methods.lwf_mc import LwfMc

ZOO = Path(__file__).parent / "fixtures" / "zoo"
ORDER = {"tasks__shapes__classes": 4}


def test_exemplars_are_herded_as_in_pycil():
    truth = load_file(ZOO / "icarl_herding.safetensors")
    count = int(truth["exemplars"])
    means = []
    for features, chosen in zip(truth["features"], truth["chosen"], strict=True):
        found = herd(features, count)
        assert found.tolist() == chosen.tolist()
        unit = F.normalize(features[found].double(), dim=1)
        means.append(F.normalize(unit.mean(dim=0), dim=0))
    assert_close(torch.stack(means), truth["class_means"], rtol=0, atol=1e-6)
    scores = score_nearest(torch.stack(means).float(), truth["test"])
    assert scores.argmax(dim=1).tolist() == truth["nearest"].tolist()


def test_a_class_with_few_images_keeps_all_of_them_once():
    assert sorted(herd(torch.randn(3, 5), 20).tolist()) == [0, 1, 2]


@pytest.mark.parametrize("part", ["first", "second"])
def test_sigmoid_losses_and_their_gradients_are_mammoth_s(part):
    truth = load_file(ZOO / "lwf_mc.safetensors")
    seen = 2 if part == "first" else 4
    labels = truth["labels_first" if part == "first" else "labels"]
    taught = None if part == "first" else truth["old_logits"][:, :2]
    logits = truth["logits"].clone().requires_grad_()
    loss = LwfMc(reduction="mean").compare(logits[:, :seen], labels, taught)
    loss.backward()
    assert_close(loss.detach().view(1), truth[f"lwf_mc/{part}_loss"], rtol=1e-4, atol=0)
    scale = float(truth[f"lwf_mc/{part}_grad"].abs().max())
    assert_close(logits.grad, truth[f"lwf_mc/{part}_grad"], rtol=0, atol=1e-4 * scale)
    summed = LwfMc().compare(truth["logits"][:, :seen], labels, taught)
    assert_close(summed, loss.detach() * seen)


def test_outputs_that_did_not_exist_are_not_compared():
    found = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    stored = torch.tensor([[0.0, torch.nan], [4.0, 7.0]])
    assert float(compare_logits(found, stored)) == pytest.approx((1 / 1 + (0 + 4) / 2) / 2)


def test_examples_of_earlier_tasks_follow_the_task_s_own_and_all_classes_are_compared():
    first, second = resolve(configure("shapes:2x2", "icarl", **ORDER)).tasks
    joined = second.with_examples([(first, [3, 30])])
    plain = joined.examples("plain")
    assert len(plain) == len(second.examples("plain")) + 2
    for place, kept in ((-2, 3), (-1, 30)):
        found, expected = plain[len(plain) + place], first.examples("plain")[kept]
        assert_identical(found._asdict(), expected._asdict())
    assert len(joined.examples("eval")) == len(second.examples("eval"))
    logits = torch.randn(3, 4)
    labels = torch.tensor([0, 2, 3])
    assert_close(joined.loss(logits, {"labels": labels}), F.cross_entropy(logits, labels))


def test_icarl_keeps_the_same_number_of_every_class_and_answers_by_their_means(tmp_path):
    config = configure("shapes:2x2", "icarl", method__exemplars=5, **ORDER)
    run = learn(config, tmp_path / "means")
    plan = resolve(config)
    for index, task in enumerate(plan.tasks):
        labels = task.examples("plain").labels[run.method.kept[index]]
        assert labels.unique(return_counts=True)[1].tolist() == [5, 5]
    assert run.method.means.shape == (4, run.learner.encoder.width)
    assert_close(run.method.means.norm(dim=1), torch.ones(4))
    head = learn(
        configure("shapes:2x2", "icarl", method__exemplars=5, method__answer="head", **ORDER),
        tmp_path / "head",
    )
    # another answer, the same training
    assert_identical(head.state, run.state)
    assert head.rows != run.rows


def test_the_buffer_is_a_uniform_sample_of_all_that_was_seen(tmp_path):
    config = configure("shapes:2x2", "der", method__size=20, **ORDER)
    run = learn(config, tmp_path)
    method = run.method
    counts = [len(task.examples("plain")) for task in resolve(config).tasks]
    keys = draw_uniform(1, torch.arange(sum(counts)))
    chosen = keys.argsort()[:20].sort().values
    places = method.places[:, 1] + counts[0] * method.places[:, 0]
    assert places.tolist() == chosen.tolist()
    first = method.places[:, 0] == 0
    assert torch.equal(method.logits[first][:, 2:].isnan(), torch.ones(int(first.sum()), 2) > 0)
    assert not method.logits[~first].isnan().any()


@pytest.mark.parametrize("method", ["icarl", "der", "replay", "icarl+ewc"])
def test_methods_that_keep_examples_are_refused_where_they_are_forbidden(method):
    options = {"methods__ewc__strength": 1.0} if "ewc" in method else {}
    config = configure("shapes:2x2", method, exemplar_free=True, **options, **ORDER)
    with pytest.raises(ConfigError, match="keeps examples of earlier tasks"):
        resolve(config)


@pytest.mark.parametrize("method", ["icarl", "der", "lwf_mc"])
def test_they_are_refused_for_tasks_with_heads_of_their_own(method):
    with pytest.raises(ConfigError, match="one head"):
        resolve(configure("nlvr2,snli-ve", method, world={}))
