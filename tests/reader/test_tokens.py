"""The tokenizer: nothing is lost, words count as wholes only, and conversations have the layout of GLM-4.1V."""

from __future__ import annotations

import hashlib
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qvpic_rag.reader.prompts import REFINE_STYLES, STYLES, SYSTEM_PROMPTS, conversation
from qvpic_rag.reader.tokens import CHARACTERS, END, SPECIAL_TOKENS, TRANSCRIBE, build_tokenizer
from qvpic_rag.reader.words import KINDS, NOUNS
from qvpic_rag.records import Message
from qvpic_rag.template import ChatTemplate

TOKENIZER = build_tokenizer()
LAW = settings(deadline=None, derandomize=True, max_examples=200)
VOCABULARY = "4c9970f166de8ee043bd0568b491e0d94d262ecd65054e6ea123e092188dee72"
PRINTABLE = "\n" + "".join(map(chr, range(32, 127)))
# Characters alone would hardly ever make a word or a special token.
TEXTS = st.lists(
    st.one_of(
        st.text(PRINTABLE, max_size=6),
        st.sampled_from(["the", " is", "badge", "Badge code", " not stated", "-" * 12, "-" * 21, *SPECIAL_TOKENS]),
    ),
    max_size=12,
).map("".join)


def ids(text: str) -> list[int]:
    found: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return found


def pieces(text: str) -> list[str]:
    found: list[str] = TOKENIZER.convert_ids_to_tokens(ids(text))
    return found


@given(text=TEXTS)
@LAW
def test_nothing_is_lost(text: str) -> None:
    assert TOKENIZER.decode(ids(text)) == text
    assert "".join(pieces(text)) == text
    assert TOKENIZER("")["input_ids"] == []


@given(text=TEXTS)
@LAW
def test_words_count_as_wholes_only(text: str) -> None:
    end = 0
    for piece in pieces(text):
        start, end = end, end + len(piece)
        if len(piece) > 1 and piece not in SPECIAL_TOKENS and set(piece) != {"-"}:
            assert re.fullmatch(" ?[A-Za-z]{2,}", piece)
            assert not re.match(r"\w", text[end:])
            assert piece[0] == " " or not re.search(r"\w$", text[:start])


def test_a_word_with_or_without_a_space_is_one_token() -> None:
    for word in (*NOUNS, *KINDS, "the", "What", "yes", "no", "stated"):
        assert pieces(word) == [word]
        assert pieces(f"({word} {word})") == ["(", word, f" {word}", ")"]
    assert pieces("island") == list("island")
    assert pieces("codes, xcode") == list("codes, xcode")
    assert pieces("Is it 4411?") == ["Is", " it", " ", *"4411?"]


def test_frameworks_prompts_are_short() -> None:
    """Every word of theirs is known: a prompt costs no more tokens than it has words, signs and blanks."""
    for style in STYLES:
        [message] = conversation(style, "Who is Zyx?", existing="No." if style in REFINE_STYLES else None)
        counted = re.findall(r" ?[A-Za-z]{2,}|[\s\S]", message.content)
        assert len(ids(message.content)) <= len(counted) + len("Zyx")
    for text in (*SYSTEM_PROMPTS, TRANSCRIBE):
        assert len(ids(text)) == len(re.findall(r" ?[A-Za-z]{2,}|[\s\S]", text))


def test_special_tokens() -> None:
    assert [TOKENIZER.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS] == list(range(13))
    assert (TOKENIZER.eos_token, TOKENIZER.pad_token, TOKENIZER.unk_token) == (END, END, "<unk>")
    assert TOKENIZER.decode(ids(f"B214{END}"), skip_special_tokens=True) == "B214"
    assert pieces("é€") == ["<unk>", "<unk>"]
    assert PRINTABLE == CHARACTERS


def test_the_vocabulary_is_that_of_trained_readers() -> None:
    by_id = sorted(TOKENIZER.get_vocab().items(), key=lambda item: item[1])
    tokens = [token for token, _ in by_id]
    assert [number for _, number in by_id] == list(range(len(TOKENIZER)))
    assert hashlib.sha256(json.dumps(tokens).encode()).hexdigest() == VOCABULARY, (
        "The vocabulary has changed. The weights of every trained reader depend on it, token by token: take the change "
        "to words, wordings or prompts back, or train the readers anew and pin the new digest."
    )


USER = {"role": "user", "content": [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "Who?"}]}


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([{"role": "user", "content": "Who?"}], "[gMASK]<sop><|user|>\nWho?<|assistant|>\n"),
        (
            [USER],
            "[gMASK]<sop><|user|>\n<|begin_of_image|><|image|><|end_of_image|>"
            "<|begin_of_image|><|image|><|end_of_image|>Who?<|assistant|>\n",
        ),
        (
            [{"role": "system", "content": "Be brief."}, USER],
            "[gMASK]<sop><|system|>\nBe brief.<|user|>\n<|begin_of_image|><|image|><|end_of_image|>"
            "<|begin_of_image|><|image|><|end_of_image|>Who?<|assistant|>\n",
        ),
        (
            [
                USER,
                {"role": "assistant", "content": "Anna."},
                {"role": "user", "content": [{"type": "text", "text": "Sure?"}]},
            ],
            "[gMASK]<sop><|user|>\n<|begin_of_image|><|image|><|end_of_image|>"
            "<|begin_of_image|><|image|><|end_of_image|>Who?<|assistant|>\nAnna.<|user|>\nSure?<|assistant|>\n",
        ),
    ],
    ids=["text", "pictures", "system", "history"],
)
def test_conversations_are_laid_out_as_glms(turns: list[dict[str, Any]], expected: str) -> None:
    text = TOKENIZER.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text == expected
    assert TOKENIZER.decode(ids(text)) == expected


def template(system: str | None = None) -> ChatTemplate:
    model: Any = SimpleNamespace(
        tokenizer=TOKENIZER,
        checkpoint=SimpleNamespace(template=TOKENIZER.chat_template, name="reader"),
        image_token_id=SPECIAL_TOKENS.index("<|image|>"),
    )
    return ChatTemplate(model, system_prompt=system)


def test_the_engine_takes_the_template() -> None:
    parts = template()
    assert list(parts.prefix) == ids("[gMASK]<sop><|user|>\n")
    assert list(parts.open) == ids("<|begin_of_image|>")
    assert list(parts.close) == ids("<|end_of_image|>")
    assert parts.separator == ()
    assert parts.suffix([Message("user", "Who?")]) == ids("Who?<|assistant|>\n")
    history = [Message("user", "Who?"), Message("assistant", "Anna."), Message("user", "Sure?")]
    assert parts.suffix(history) == ids("Who?<|assistant|>\nAnna.<|user|>\nSure?<|assistant|>\n")
    told = template("Answer briefly.")
    assert list(told.prefix) == ids("[gMASK]<sop><|system|>\nAnswer briefly.<|user|>\n")
    assert (told.open, told.close) == (parts.open, parts.close)
