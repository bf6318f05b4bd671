"""Methods as users write them: ``full@120``, ``pic@72/dummy-4``, ``epic2@text``, ``qvpic@72-144+alpha=0.5``.

| written | method |
|---|---|
| ``full@D`` | full prefill |
| ``prefix@D`` | full prefill with exact-prefix caching |
| ``pic@D/C`` | position-independent caching, pages conditioned by C |
| ``epicK@D`` | EPIC: the first K tokens of every chunk computed again |
| ``topK@text`` | only the text of the K nearest pages, full prefill |
| ``qvpic[@L-H][/C][+alpha=A][+budget=B]`` | QV-PIC at resolutions L and H (72-120) |

D is ``text`` or a resolution in DPI; C is ``native``, ``native-short``, ``prefix-free`` or ``dummy-K``. QV-PIC takes
``+token_budget=N`` and ``+router=hybrid``, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from qvpic_rag.baselines.base import Method
from qvpic_rag.baselines.blocks import TEXT
from qvpic_rag.baselines.conditioning import Conditioning
from qvpic_rag.baselines.epic import Epic
from qvpic_rag.baselines.full import Full
from qvpic_rag.baselines.pic import Pic
from qvpic_rag.baselines.prefix_cache import PrefixCache
from qvpic_rag.baselines.qvpic import QvPic
from qvpic_rag.baselines.subject import Subject
from qvpic_rag.baselines.top_text import TopText
from qvpic_rag.config import RouteConfig, check_dpis
from qvpic_rag.errors import ConfigError

__all__ = ["Spec", "make_method", "read_spec"]

_OVER = re.compile(r"(full|prefix|pic|epic([1-9][0-9]{0,5}))@(text|[1-9][0-9]{1,2})(?:/([a-z0-9-]+))?")
_TOP = re.compile(r"top([1-9][0-9]{0,3})@text")
_QVPIC = re.compile(r"qvpic(?:@([1-9][0-9]{1,2})-([1-9][0-9]{1,2}))?(?:/([a-z0-9-]+))?((?:\+[a-z_]+=[a-z0-9.]+)*)")
_FORMS = "full@D, prefix@D, pic@D/C, epicK@D, topK@text or qvpic[@L-H][/C][+SETTING=VALUE ...]"
_SETTINGS: dict[str, Callable[[str], float | int | str]] = {
    "alpha": float, "budget": int, "token_budget": int, "router": str,
}  # fmt: skip


@dataclass(frozen=True)
class Spec:
    """A method as it was written, understood before there is a model.

    Attributes
    ----------
    name : str
        The method's, which says what was left out: ``pic@72`` is ``pic@72/native``.
    pictures : bool
        Whether it is over pictures.
    ranks : bool
        Whether it chooses pages by their embeddings.
    make : Callable[[Subject], Method]
        Makes it for a model.
    """

    name: str
    pictures: bool
    ranks: bool
    make: Callable[[Subject], Method]


def read_spec(spec: str) -> Spec:
    """The method that ``spec`` describes, see the module docstring; spaces around it mean nothing.

    Raises
    ------
    ConfigError
        It describes none.
    """
    spec = spec.strip()
    if match := _QVPIC.fullmatch(spec):
        return _qvpic(spec, *match.groups())
    if match := _TOP.fullmatch(spec):
        count = int(match[1])
        return Spec(spec, False, True, lambda subject: TopText(subject, count))
    if match := _OVER.fullmatch(spec):
        kind, tokens, where, conditioning = match.groups()
        over = TEXT if where == "text" else int(where)
        if over != TEXT and not 24 <= over <= 600:
            raise ConfigError(f"Method {spec!r} draws pages at {over} DPI; pages are drawn at 24 to 600.")
        if kind == "pic":
            name = Conditioning(conditioning or "native").name
            return Spec(f"pic@{where}/{name}", over != TEXT, False, lambda subject: Pic(subject, over, name))
        if conditioning is None and tokens:
            return Spec(spec, over != TEXT, False, lambda subject: Epic(subject, int(tokens), over))
        if conditioning is None:
            method = Full if kind == "full" else PrefixCache
            return Spec(spec, over != TEXT, False, lambda subject: method(subject, over))
    raise ConfigError(f"There is no method {spec!r}; write {_FORMS}, such as full@120 or pic@72/prefix-free.")


def make_method(spec: str, subject: Subject) -> Method:
    """:func:`read_spec`, made.

    Raises
    ------
    ConfigError
        It describes no method, or one with the hybrid router, which the embedder cannot serve.
    UnsupportedModelError
        It is over pictures and the model reads none.
    """
    found = read_spec(spec)
    if found.pictures:
        subject.vision  # noqa: B018 - refuses models without pictures, before anything is compiled
    return found.make(subject)


def _qvpic(spec: str, low: str | None, high: str | None, conditioning: str | None, settings: str) -> Spec:
    dpis = check_dpis((int(low), int(high)) if low and high else (72, 120))
    name, config = Conditioning(conditioning or "native").name, _route_config(spec, settings)
    return Spec(spec, True, True, lambda subject: QvPic(subject, dpis, name, config, spec))


def _route_config(spec: str, settings: str) -> RouteConfig:
    values: dict[str, float | int | str] = {}
    for setting in settings.split("+")[1:]:
        name, _, value = setting.partition("=")
        if name in values:
            raise ConfigError(f"Method {spec!r} sets {name} twice; set it once.")
        try:
            values[name] = _SETTINGS[name](value)
        except KeyError:
            raise ConfigError(f"Method {spec!r} sets {name}; {', '.join(_SETTINGS)} can be set.") from None
        except ValueError:
            raise ConfigError(f"Method {spec!r} sets {name} to {value}, which is not a number of its kind.") from None
    return RouteConfig(**values)  # type: ignore[arg-type]
