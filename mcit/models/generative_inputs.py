"""Prompts, answers and images as the tensors of a generative model, made in loader workers.

A row is the prompt by the model's own chat template, the answer and the end mark:

    USER: <image>\\nWhat color is it? ASSISTANT: red</s>
    ------------ prompt, masked -----------|-- answer --

The template is rendered once for every number of images, around a placeholder. Which tokens belong
to the answer is decided by the prompt's own tokens, with which the row must begin. Rows are padded
on the left, so that answers end them: `labels` [batch, answer] belong to the last places of a row
and are -100 where an answer is shorter than the longest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoProcessor, AutoTokenizer

from mcit.answer_scores import IGNORED
from mcit.data.image_cache import PreparedPicture
from mcit.data.problems import BadRecord
from mcit.errors import ConfigError, DataError
from mcit.models.pretrained import first_line, is_local, quiet_transformers
from mcit.spelling import suggest
from mcit.task import Batch

# words that no template changes and no user writes
_QUESTION = "mcitquestionplaceholder"
_ANSWER = "mcitanswerplaceholder"
TOO_LONG = "too long for the model"
FILES = (
    "give a hub name, or a folder with config.json, model.safetensors, generation_config.json, "
    "tokenizer.json, processor_config.json and chat_template.jinja"
)


@dataclass(frozen=True)
class Frame:
    """What the chat template puts around a prompt, and between the prompt and its answer."""

    before: str
    after: str
    gap: str

    def ask(self, prompt: str) -> str:
        """Return the text that the model continues."""
        return f"{self.before}{prompt}{self.after}"


class GenerativeInputs:
    """Makes tensors of prompts, answers and images; picklable, for loader workers.

    `processor` is None for a model that reads texts only.
    """

    def __init__(self, name: str, tokenizer: Any, processor: Any = None, limit: int | None = None):
        self.name = name
        self.tokenizer = tokenizer
        self.processor = processor
        # tokens that the model takes at most, None if its configuration does not say
        self.limit = limit
        self._frames: dict[int, Frame] = {}
        self._image_tokens: int | None = None
        if tokenizer.eos_token_id is None:
            raise DataError(f"{name}: the tokenizer has no end mark (eos_token); {FILES}")
        if tokenizer.pad_token_id is None:
            # padding is masked, any token does
            tokenizer.pad_token = tokenizer.eos_token
        tokenizer.padding_side = "left"

    @classmethod
    def from_pretrained(
        cls, name: str, config: Any, reads_images: bool, settings: Mapping[str, Any]
    ) -> GenerativeInputs:
        """Return the processor of a checkpoint; settings: changes of how it prepares images."""
        # workers are processes already: the tokenizer's threads would make every fork print a
        # warning
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        loader = AutoProcessor if reads_images else AutoTokenizer
        try:
            with quiet_transformers():
                found = loader.from_pretrained(
                    name, local_files_only=is_local(name), trust_remote_code=False
                )
        except (OSError, ValueError, ImportError) as error:
            what = "processor" if reads_images else "tokenizer"
            raise DataError(f"{name}: no {what} ({first_line(error)}); {FILES}") from error
        text = config.get_text_config()
        limit = getattr(text, "max_position_embeddings", None)
        if not reads_images:
            return cls(name, found, limit=limit)
        _change_settings(name, found.image_processor, settings)
        return cls(name, found.tokenizer, found, limit)

    def save_pretrained(self, folder: Path) -> None:
        """Write the tokenizer and the processor in Hugging Face format."""
        (self.processor or self.tokenizer).save_pretrained(folder)

    @property
    def image_tokens(self) -> int:
        """Return how many places an image takes, measured on a small one."""
        if self._image_tokens is None:
            text = self.frame(1).ask("a")
            plain = len(self._tokenize([text])[0])
            read = self._process([text], [[Image.new("RGB", (64, 64))]])
            self._image_tokens = read["input_ids"].shape[1] - plain + 1
        return self._image_tokens

    @property
    def frame_tokens(self) -> int:
        """Return an upper bound of what a row has besides prompt, answer and images."""
        frame = self.frame(0)
        return len(frame.before.encode()) + len(frame.after.encode()) + 16

    def frame(self, images: int) -> Frame:
        """Return what the template puts around a prompt with so many images."""
        if images not in self._frames:
            self._frames[images] = self._render(images)
        return self._frames[images]

    def write(self, prompt: str, answer: str, images: int) -> tuple[str, str]:
        """Return the text of a prompt, and the whole text with its answer and end mark."""
        frame = self.frame(images)
        asked = frame.ask(prompt.strip())
        return asked, f"{asked}{frame.gap}{answer.strip()}{self.tokenizer.eos_token}"

    def count(self, prompt: str, answer: str, images: int) -> int:
        """Return about how many places a row takes; images may take more if they are large."""
        whole = self.write(prompt, answer, images)[1]
        length = len(self._tokenize([whole])[0])
        if images:
            length += images * (self.image_tokens - 1)
        return length

    def count_answer(self, answer: str) -> int:
        """Return how many tokens an answer has, its end mark included."""
        asked, whole = self.write("a", answer, images=0)
        return len(self._tokenize([whole])[0]) - len(self._tokenize([asked])[0])

    def read(
        self,
        prompts: Sequence[str],
        answers: Sequence[str],
        images: Sequence[Sequence[Image.Image | PreparedPicture]],
        places: Sequence[str] = (),
    ) -> dict[str, Tensor]:
        """Return the rows of a batch and `labels` [batch, answer] of their last places.

        places: where each example comes from, for errors.
        """
        shown = [[_open(image) for image in each] for each in images]
        pairs = []
        for prompt, answer, each in zip(prompts, answers, shown, strict=True):
            pairs.append(self.write(prompt, answer, len(each)))
        answer_ids = self._find_answers(pairs, places)
        rows = self._process([whole for _, whole in pairs], shown)
        self._check_rows(rows["input_ids"], answer_ids, places)
        longest = max(len(ids) for ids in answer_ids)
        labels = torch.full((len(pairs), longest), IGNORED)
        for row, ids in enumerate(answer_ids):
            labels[row, -len(ids) :] = torch.tensor(ids)
        return {**rows, "labels": labels}

    def decode(self, ids: Any) -> list[str]:
        """Return texts of token ids, up to the first end mark, without special tokens."""
        texts = []
        for row in ids:
            kept = []
            for token in row:
                if int(token) == self.tokenizer.eos_token_id:
                    break
                kept.append(int(token))
            texts.append(self.tokenizer.decode(kept, skip_special_tokens=True).strip())
        return texts

    def _find_answers(
        self, pairs: Sequence[tuple[str, str]], places: Sequence[str]
    ) -> list[list[int]]:
        """Return the tokens of each answer: those that follow the prompt's own."""
        asked = self._tokenize([prompt for prompt, _ in pairs])
        whole = self._tokenize([text for _, text in pairs])
        answers = []
        for number, (prompt, row) in enumerate(zip(asked, whole, strict=True)):
            if row[: len(prompt)] != prompt or row[-1:] != [self.tokenizer.eos_token_id]:
                raise DataError(
                    f"{_place(places, number)}the tokenizer of {self.name} does not separate "
                    f"prompt and answer: {pairs[number][1]!r} does not begin with the tokens of "
                    f"its "
                    "prompt, or does not end with the end mark"
                )
            answers.append(row[len(prompt) :])
        return answers

    def _check_rows(
        self, input_ids: Tensor, answers: Sequence[list[int]], places: Sequence[str]
    ) -> None:
        length = input_ids.shape[1]
        if self.limit is not None and length > self.limit:
            lengths = (input_ids != self.tokenizer.pad_token_id).sum(dim=1)
            number = int(lengths.argmax())
            raise BadRecord(
                f"{_place(places, number)}{self.describe_excess(length)}", reason=TOO_LONG
            )
        for row, ids in enumerate(answers):
            if input_ids[row, length - len(ids) :].tolist() != ids:
                raise DataError(
                    f"{_place(places, row)}the processor of {self.name} changes an answer: the "
                    f"last tokens of the row are not those of the answer"
                )

    def describe_excess(self, length: int) -> str:
        """Return what is wrong with a row of so many tokens."""
        return (
            f"prompt and answer have {length} tokens with their images, the model takes at most "
            f"{self.limit}"
        )

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        # as transformers does: a template that writes the first token itself needs no second
        own = self.tokenizer.bos_token
        special = not (own and texts[0].startswith(own))
        return self.tokenizer(list(texts), add_special_tokens=special, verbose=False)["input_ids"]

    def _process(
        self, texts: Sequence[str], images: Sequence[Sequence[Image.Image]]
    ) -> dict[str, Tensor]:
        own = self.tokenizer.bos_token
        special = not (own and texts[0].startswith(own))
        options = {"padding": True, "return_tensors": "pt", "add_special_tokens": special}
        if self.processor is None:
            if any(images):
                raise DataError(
                    f"{self.name} reads texts only, and an example has an image: use a model of "
                    "AutoModelForImageTextToText"
                )
            return dict(self.tokenizer(list(texts), **options))
        shown = [list(each) for each in images] if any(images) else None
        return dict(self.processor(text=list(texts), images=shown, **options))

    def _render(self, images: int) -> Frame:
        prompt = self._apply([self._turn("user", _QUESTION, images)], True)
        turns = [self._turn("user", _QUESTION, images), self._turn("assistant", _ANSWER)]
        whole = self._apply(turns, False)
        if prompt.count(_QUESTION) != 1 or whole.count(_ANSWER) != 1:
            raise DataError(
                f"{self.name}: the chat template leaves out the question or the answer; "
                "put the chat_template.jinja that came with the weights in its folder"
            )
        before, _, after = prompt.partition(_QUESTION)
        start = whole.index(_ANSWER)
        gap = ""
        if whole.startswith(prompt):
            gap = whole[len(prompt) : start]
        elif whole[:start].endswith(" ") and not prompt.endswith(" "):
            gap = " "
        return Frame(before, after, gap)

    def _turn(self, role: str, text: str, images: int = 0) -> dict[str, Any]:
        if self.processor is None:
            return {"role": role, "content": text}
        parts: list[dict[str, str]] = [{"type": "image"} for _ in range(images)]
        return {"role": role, "content": [*parts, {"type": "text", "text": text}]}

    def _apply(self, turns: Sequence[Mapping[str, Any]], ask: bool) -> str:
        owner = self.processor or self.tokenizer
        try:
            return owner.apply_chat_template(list(turns), add_generation_prompt=ask, tokenize=False)
        except Exception as error:
            # templates are programs: anything can go wrong in them
            raise DataError(
                f"{self.name}: its chat template cannot make a prompt ({first_line(error)}); "
                "put the chat_template.jinja that came with the weights in its folder"
            ) from error


def realign(batch: Batch, cut: Tensor, pad: int) -> dict[str, Tensor]:
    """Return a batch without the last `cut` [batch] tokens of each row, padded on the left again.

    Every tensor of the shape of `input_ids` is cut; `labels` and what is not a tensor is left out.
    """
    mask = batch["attention_mask"]
    lengths = mask.sum(dim=1) - cut
    longest = int(lengths.max())
    whole = mask.shape[1]
    # the place that each token of the new rows comes from; those before the first are masked
    shift = whole - longest - cut
    source = torch.arange(longest, device=mask.device)[None, :] + shift[:, None]
    kept = torch.arange(longest, device=mask.device)[None, :] >= (longest - lengths)[:, None]
    source = source.clamp(min=0)
    cut_batch = {}
    for key, value in batch.items():
        if key == "labels" or not isinstance(value, Tensor):
            continue
        if value.shape == mask.shape:
            fill = pad if key == "input_ids" else 0
            value = torch.where(kept, value.gather(1, source), fill)
        cut_batch[key] = value
    return cut_batch


def _open(image: Image.Image | PreparedPicture) -> Image.Image:
    # a processor resizes in its own way, from the source
    if isinstance(image, PreparedPicture):
        return image.open()
    return image


def _place(places: Sequence[str], number: int) -> str:
    return f"{places[number]}: " if places else ""


def _change_settings(name: str, images: Any, settings: Mapping[str, Any]) -> None:
    """Change how images are prepared; raise for a setting that the processor does not have."""
    problems = []
    for key, value in settings.items():
        known = [word for word in vars(images) if not word.startswith("_")]
        if key not in known:
            near = suggest(key, known)
            listed = ", ".join(sorted(known))
            problems.append(
                f"model.images.{key}: the image processor of {name} has no such setting{near} "
                f"(settings: {listed})"
            )
        else:
            setattr(images, key, value)
    if problems:
        raise ConfigError(problems)
