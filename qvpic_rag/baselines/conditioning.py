"""What pages are compiled under.

``native`` is everything that the request has before its pages: the model's chat-template prefix h (the paper's
template conditioning) and, where the prompt has such words, what the user says first. ``native-short`` is the same with
the shortest prefix that the template allows, and the request uses it too. ``prefix-free`` is nothing, ``dummy-k`` the
token ``x`` k times; with both of them the request begins with the native prefix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from qvpic_rag.baselines.subject import Prompts, Subject
from qvpic_rag.errors import ConfigError

__all__ = ["Conditioning"]

_DUMMY = "x"
_FORM = re.compile(r"native|native-short|prefix-free|dummy-([1-9][0-9]{0,3})")


@dataclass(frozen=True)
class Conditioning:
    """One of the above by ``name``; ``ConfigError`` for others."""

    name: str

    def __post_init__(self) -> None:
        if _FORM.fullmatch(self.name) is None:
            raise ConfigError(
                f"Conditioning is native, native-short, prefix-free or dummy-k (such as dummy-4), not {self.name!r}."
            )

    def prompts(self, subject: Subject) -> Prompts:
        """The prompts of requests."""
        return subject.short_prompts if self.name == "native-short" else subject.prompts

    def ids(self, subject: Subject, before: str) -> tuple[int, ...]:
        """Token ids that each page is compiled under."""
        if self.name.startswith("native"):
            return tuple(self.prompts(subject).head(before))
        if self.name == "prefix-free":
            return ()
        dummy = subject.model.tokenizer(_DUMMY, add_special_tokens=False)["input_ids"]
        return tuple(dummy[-1:]) * int(self.name.removeprefix("dummy-"))
