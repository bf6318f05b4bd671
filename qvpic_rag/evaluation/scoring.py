"""How right an answer is: LongBench's token F1 and exact match, and plain ones for questions of any kind.

LongBench's normalisation takes off what may be the answer: to it ``1.5`` is ``15``, ``-5`` is ``5``, ``C++`` is ``C``,
and ``A`` is nothing.

Source: ``qa_f1_score`` and ``scorer`` of LongBench (Bai et al., 2024; THUDM/LongBench, ``LongBench/metrics.py`` and
``eval.py``); a test compares both.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from qvpic_rag.errors import InputError

__all__ = ["SCORINGS", "Score", "bare_answer", "normalise", "plain", "score", "token_f1"]

SCORINGS = ("exact", "longbench", "longbench-first-line", "plain")
_THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
_MARK = re.compile(r"<\|[^|\s]+\|>")
_OPEN, _CLOSE = "<answer>", "</answer>"
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_ENDS = ".!?\N{HORIZONTAL ELLIPSIS}"
_QUOTES = {"'": "'", '"': '"', "`": "`", "\u2018": "\u2019", "\u201c": "\u201d", "\u201e": "\u201c", "\xab": "\xbb"}
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Score(NamedTuple):
    """Token F1, from 0 to 1, and exact match, 0 or 1; each the best over the right answers."""

    f1: float
    em: float


def score(text: str, answers: Sequence[str], scoring: str) -> Score:
    """Score an answer.

    Parameters
    ----------
    text : str
        What a model wrote; see :func:`bare_answer` for what is taken off.
    answers : Sequence[str]
        Each of them is right.
    scoring : str
        ``longbench``: F1 and equality of the normalised texts. ``longbench-first-line``: of the first line alone, as
        LongBench does where a model goes on with examples of its own. ``exact``: the same F1, and equality of the texts
        as they are but for white space at the ends. ``plain``: F1 and equality of the texts as :func:`plain` has them.

    Raises
    ------
    InputError
        No answer is right, or the scoring is unknown.
    """
    if scoring not in SCORINGS:
        raise InputError(f"scoring must be one of {', '.join(SCORINGS)}, not {scoring!r}.")
    if not answers:
        raise InputError("An answer cannot be scored where none is right; give at least one.")
    text = bare_answer(text)
    if scoring == "longbench-first-line":
        text = text.lstrip("\n").split("\n")[0]
    words = plain if scoring == "plain" else normalise
    same: Callable[[str], str] = str.strip if scoring == "exact" else words
    return Score(
        f1=max(_overlap(words(text).split(), words(answer).split()) for answer in answers),
        em=float(any(same(text) == same(answer) for answer in answers)),
    )


def bare_answer(text: str) -> str:
    """An answer without completed ``<think>`` sections, chat marks such as ``<|user|>``, and GLM's ``<answer>``.

    The engine takes them off already; answers from elsewhere hold them. Thinking that was cut off stays, because no
    answer follows it.
    """
    text = _MARK.sub("", _THOUGHT.sub("", text))
    if not text.lstrip().startswith(_OPEN):
        return text
    return text.lstrip().removeprefix(_OPEN).partition(_CLOSE)[0].strip()


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation, English articles and superfluous white space."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def plain(text: str) -> str:
    """Without regard to case and superfluous white space, quotes around it, and full stops and marks at its end.

    Composed (NFC) and case-folded. Signs, decimal points, articles and everything else within stay. A text of nothing
    but quotes and marks stays, too.
    """
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())
    whole = bare = " ".join(folded.split())
    while True:
        shorter = bare.rstrip(_ENDS).rstrip()
        inner = shorter[1:-1]
        if len(shorter) > 1 and shorter[-1] == _QUOTES.get(shorter[0]) and shorter[-1] not in inner:
            shorter = inner.strip()
        if shorter == bare or not shorter:
            return bare if shorter else whole
        bare = shorter


def token_f1(text: str, answer: str) -> float:
    """F1 of the words that two normalised texts have in common; 0 where there are none, even if both are empty."""
    return _overlap(normalise(text).split(), normalise(answer).split())


def _overlap(found: Sequence[str], right: Sequence[str]) -> float:
    common = (Counter(found) & Counter(right)).total()
    if common == 0:
        return 0.0
    precision, recall = common / len(found), common / len(right)
    return 2 * precision * recall / (precision + recall)
