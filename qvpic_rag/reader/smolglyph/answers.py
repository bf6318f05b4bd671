"""SmolLM2's own answers about texts, which it should still give when it sees pictures of them.

They are collected once and kept with the run, one JSON object per line.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from qvpic_rag.errors import ConfigError
from qvpic_rag.reader.smolglyph.lessons import Answered, Prose
from qvpic_rag.reader.smolglyph.requests import ABOUT, Prompts

__all__ = ["answer", "load_answers"]

_LENGTHS = (48, 80)  # tokens of a text; both fit a page
_TOGETHER = 16  # texts of one length and one request: no padding, which would move positions
_LONGEST = 40  # tokens of an answer
_CHARACTERS = 400  # fit the profile's page


def load_answers(
    path: Path, count: int, model: Any, prompts: Prompts, prose: Prose, seed: int, progress: Callable[[str], object]
) -> list[Answered]:
    """The answers in a file; what is missing of ``count`` is asked for and added.

    Parameters
    ----------
    model : Any
        SmolLM2 in the model of :func:`qvpic_rag.models.smolglyph.model.build_model`, without updates.

    Raises
    ------
    ConfigError
        The file cannot be read or written, or holds something else.
    """
    try:
        found = _read(path) if path.exists() else []
        batch = len(found) // _TOGETHER
        while len(found) < count:
            progress(f"SmolLM2 answers about texts: {len(found)} of {count} ...")
            more = _batch(model, prompts, prose, random.Random(f"{seed} answers {batch}"))
            with path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(vars(each)) + "\n" for each in more)
            found += more
            batch += 1
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"SmolLM2's answers in {path} cannot be used ({error}); delete the file.") from error
    return found[:count]


def _read(path: Path) -> list[Answered]:
    """The answers in a file; a batch that an interruption cut off is dropped from it, to be asked for again."""
    text = path.read_text(encoding="utf-8")
    lines = text[: text.rfind("\n") + 1].splitlines()
    found = [Answered(**json.loads(line)) for line in lines]
    whole = len(lines) // _TOGETHER * _TOGETHER
    kept = "".join(f"{line}\n" for line in lines[:whole])
    if kept != text:
        part = path.with_name(f"{path.name}.part")
        part.write_text(kept, encoding="utf-8")
        part.replace(path)
    return found[:whole]


def _batch(model: Any, prompts: Prompts, prose: Prose, rng: random.Random) -> list[Answered]:
    """Answers to one request about :data:`_TOGETHER` texts of one length."""
    length, request = rng.choice(_LENGTHS), rng.choice(ABOUT)
    texts: list[str] = []
    while len(texts) < _TOGETHER:
        text = prompts.tokenizer.decode(prompts.ids(prose.draw(rng, _CHARACTERS))[:length])
        if len(prompts.ids(text)) == length and len(text) <= _CHARACTERS:
            texts.append(text)
    replies = answer(model, prompts, texts, request, _LONGEST)
    return [Answered(text, request, reply) for text, reply in zip(texts, replies, strict=True)]


def answer(model: Any, prompts: Prompts, texts: Sequence[str], request: str, longest: int) -> list[str]:
    """What the model answers about texts that it reads as words; all of one length in tokens."""
    asked = [prompts.asked(request, "")]
    contexts = [prompts.as_text([text], asked) for text in texts]
    rows = [[*each.prefix, *each.open, *each.close, *each.asked[0].prompt] for each in contexts]
    ids = torch.tensor(rows, device=model.device)
    with torch.no_grad():
        found = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=longest, do_sample=False
        )
    return [_readable(prompts, row) for row in found[:, ids.shape[1] :].tolist()]


def _readable(prompts: Prompts, ids: list[int]) -> str:
    return str(prompts.tokenizer.decode(list(_until_end(prompts, ids)))).strip()


def _until_end(prompts: Prompts, ids: list[int]) -> Iterator[int]:
    for token in ids:
        if token in (prompts.tokenizer.eos_token_id, prompts.tokenizer.pad_token_id):
            return
        yield token
