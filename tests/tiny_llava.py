"""A tiny random LLaVA in Hugging Face format, and files of instructions for it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

TEXT = (
    "what is it how many where the a an in on of red green blue one two three cat dog true false "
    "yes no left right answer with word color there are A B C D"
)
WORDS = TEXT.split()
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<image>", "USER:", "ASSISTANT:"]
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}USER: "
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<image>\n{% endif %}{% endfor %}"
    "{% for c in m['content'] %}{% if c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %}"
    " {% else %}ASSISTANT: {{ m['content'][0]['text'] }} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
SIDE = 16
PATCH = 8


def write_llava(folder: Path, words: list[str] | None = None, places: int = 64) -> Path:
    """Write a LLaVA of about ten thousand weights: config, weights, tokenizer, processor."""
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *(words or WORDS)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=["<image>", "USER:", "ASSISTANT:"],
    )
    images = CLIPImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
    )
    processor = transformers.LlavaProcessor(
        image_processor=images,
        tokenizer=fast,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    )
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(
            **size, intermediate_size=24, image_size=SIDE, patch_size=PATCH
        ),
        text_config=transformers.LlamaConfig(
            **size,
            vocab_size=len(vocabulary),
            num_key_value_heads=1,
            intermediate_size=24,
            max_position_embeddings=places,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        image_token_index=vocabulary["<image>"],
    )
    torch.manual_seed(3)
    model = transformers.LlavaForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    # what checkpoints of the hub ask for, and runs must not do
    model.generation_config.do_sample = True
    model.generation_config.temperature = 0.9
    model.generation_config.eos_token_id = 2
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


# answers of several lengths
NAMES = {"red": "red", "green": "one green", "blue": "blue"}
COLORS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220)}


def write_instructions(root: Path, name: str, answer: str = "color", count: int = 24) -> Path:
    """Write NAME.json, NAME_test.json and the images that they name."""
    folder = root / "images"
    folder.mkdir(parents=True, exist_ok=True)
    for color, value in COLORS.items():
        Image.new("RGB", (20, 24), value).save(folder / f"{color}.png")
    train = []
    test = []
    for number in range(count):
        color = list(COLORS)[number % 3]
        said = NAMES[color] if answer == "color" else str(color == "red").lower()
        asked = "what color is it" if answer == "color" else "is it red answer with true false"
        human = {"from": "human", "value": f"<image>\n{asked}"}
        turns = [human, {"from": "gpt", "value": said}]
        image = f"images/{color}.png"
        train.append({"id": str(number), "image": image, "conversations": turns})
        test.append({"question_id": number, "image": image, "text": asked, "answer": said})
    (root / f"{name}.json").write_text(json.dumps(train))
    (root / f"{name}_test.json").write_text(json.dumps(test[: count // 2]))
    return root / f"{name}.json"


ORDER = "instruction:a.json,instruction:b.json"


def write_text_world(folder: Path) -> dict[str, object]:
    """Two files of instructions and a tiny LLaVA, as the keys of a configuration for `ORDER`."""
    root = folder / "text-data"
    write_instructions(root, "a")
    write_instructions(root, "b", "truth")
    recipe = {"epochs": 2, "batch_size": 7, "learning_rate": 0.02}
    return {
        "data_root": str(root),
        "model.name": str(write_llava(folder / "llava")),
        "model.lora.rank": 2,
        "tasks.instruction.new_tokens": 4,
        **{f"tasks.instruction.recipe.{name}": value for name, value in recipe.items()},
    }
