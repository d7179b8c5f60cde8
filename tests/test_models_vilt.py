"""The encoder, against transformers' own model."""

from __future__ import annotations

import pytest
import torch
from tiny_vilt import PATCH, SIZES, make_batch, make_model
from torch.testing import assert_close
from transformers import ViltModel

from mcit.models.vilt import ViltEncoder


@pytest.fixture(scope="module")
def encoder():
    return ViltEncoder(make_model()).eval()


def three_modalities() -> ViltModel:
    """Transformers' own model with a third modality that differs from the second, to compare
    with."""
    return make_model(modality_type_vocab_size=3)


def row_of(batch, text: int, image: int):
    picked = {name: value[text : text + 1] for name, value in batch.items() if value.dim() == 2}
    return {
        **picked,
        **{name: value[image : image + 1] for name, value in batch.items() if value.dim() > 2},
    }


def test_pooled_output_equals_transformers_on_a_ragged_batch(encoder):
    batch = make_batch(len(SIZES), SIZES)
    with torch.no_grad():
        expected = make_model()(**batch).pooler_output
        assert_close(encoder(batch)[:, 0], expected, atol=1e-5, rtol=0)


def test_an_example_scores_the_same_alone_and_in_any_company(encoder):
    batch = make_batch(len(SIZES), SIZES)
    with torch.no_grad():
        together = encoder(batch)
        for index, (rows, columns) in enumerate(SIZES):
            alone = row_of(batch, index, index)
            for name in ("pixel_values", "pixel_mask"):
                alone[name] = alone[name][..., : rows * PATCH, : columns * PATCH]
            words = int(alone["attention_mask"].sum())
            alone = {
                **alone,
                **{name: alone[name][:, :words] for name in ("input_ids", "attention_mask")},
            }
            assert_close(encoder(alone), together[index : index + 1], atol=1e-5, rtol=0)


def test_a_pair_of_images_is_two_passes_of_transformers_with_types_one_and_two():
    encoder = ViltEncoder(three_modalities()).eval()
    oracle = three_modalities()
    batch = make_batch(3, SIZES)
    texts = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        features = encoder(batch)
        for side in (0, 1):
            images = {name: batch[name][side::2] for name in ("pixel_values", "pixel_mask")}
            expected = oracle(**texts, **images, image_token_type_idx=side + 1).pooler_output
            assert_close(features[:, side], expected, atol=1e-5, rtol=0)


def test_four_choices_are_four_passes_of_transformers_on_one_image(encoder):
    oracle = make_model()
    batch = make_batch(4 * 3, SIZES[:3])
    with torch.no_grad():
        features = encoder(batch)
        assert features.shape == (3, 4, 16)
        for choice in range(4):
            texts = {name: batch[name][choice::4] for name in ("input_ids", "attention_mask")}
            images = {name: batch[name] for name in ("pixel_values", "pixel_mask")}
            assert_close(
                features[:, choice], oracle(**texts, **images).pooler_output, atol=1e-5, rtol=0
            )


def test_patches_of_an_image_are_embedded_once_whatever_the_choices(encoder):
    seen = []
    handle = encoder.vilt.embeddings.patch_embeddings.projection.register_forward_hook(
        lambda module, inputs, output: seen.append(len(output))
    )
    encoder(make_batch(8, SIZES[:2]))
    handle.remove()
    assert seen == [2]


def test_an_eval_pass_leaves_the_random_state_alone_and_repeats_bit_for_bit(encoder):
    batch = make_batch(len(SIZES), SIZES)
    before = torch.get_rng_state()
    first = encoder(batch)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(encoder(batch), first)


def test_gradients_equal_those_of_transformers():
    encoder = ViltEncoder(three_modalities()).eval()
    oracle = three_modalities()
    batch = make_batch(3, SIZES[:3])
    encoder(batch).square().sum().backward()
    oracle(**batch).pooler_output.square().sum().backward()
    ours = dict(encoder.vilt.named_parameters())
    theirs = dict(oracle.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, parameter in theirs.items():
        assert_close(
            ours[name].grad,
            parameter.grad,
            atol=1e-5,
            rtol=1e-4,
            msg=lambda text, name=name: name + text,
        )


def test_every_parameter_is_there_once_and_under_the_name_of_transformers(encoder):
    names = [name for name, _ in encoder.named_parameters(remove_duplicate=False)]
    assert len(names) == len(set(names))
    assert [name.removeprefix("vilt.") for name in names] == [
        name for name, _ in make_model().named_parameters()
    ]


def test_the_owner_of_the_bare_parameters_gives_one_row_per_image(encoder):
    shapes = []
    handle = encoder.vilt.embeddings.register_forward_hook(
        lambda module, inputs, output: shapes.append(output.shape)
    )
    encoder(make_batch(2, SIZES[:4]))
    handle.remove()
    assert shapes == [(4, 1 + 36, 16)]


def test_text_positions_are_looked_up_for_every_row(encoder):
    shapes = []
    positions = encoder.vilt.embeddings.text_embeddings.position_embeddings
    handle = positions.register_forward_hook(
        lambda module, inputs, output: shapes.append(output.shape)
    )
    encoder(make_batch(4, SIZES[:4]))
    handle.remove()
    assert shapes == [(4, 9, 16)]


def test_the_second_image_starts_as_a_copy_of_the_first():
    encoder = ViltEncoder(make_model())
    weight = encoder.vilt.embeddings.token_type_embeddings.weight
    old = make_model().embeddings.token_type_embeddings
    assert encoder.vilt.config.modality_type_vocab_size == 3
    assert torch.equal(weight[:2], old.weight)
    assert torch.equal(weight[2], old.weight[1])
    assert weight.requires_grad


def test_a_checkpoint_with_three_modalities_keeps_them():
    weight = ViltEncoder(three_modalities()).vilt.embeddings.token_type_embeddings.weight
    assert torch.equal(weight, three_modalities().embeddings.token_type_embeddings.weight)


def test_bf16_autocast_is_near_float32(encoder):
    batch = make_batch(3, SIZES)
    with torch.no_grad():
        exact = encoder(batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            near = encoder(batch)
    assert_close(near.float(), exact, atol=0.1, rtol=0)
    assert not torch.equal(near.float(), exact)


def test_texts_and_images_that_do_not_match_are_named(encoder):
    with pytest.raises(ValueError, match="3 texts cannot be divided evenly over 2 images"):
        encoder(make_batch(3, SIZES[:2]))
    with pytest.raises(ValueError, match="3 images per text"):
        encoder(make_batch(1, SIZES[:3]))


def test_a_model_that_would_drop_patches_at_random_is_refused():
    with pytest.raises(ValueError, match="max_image_length is 5"):
        ViltEncoder(make_model(max_image_length=5))
