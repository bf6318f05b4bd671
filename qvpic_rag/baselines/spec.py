"""Methods as users write them: ``full@120``, ``pic@72/dummy-4``, ``epic2@text``, ``qvpic@72-144+alpha=0.5``.

| written | method |
|---|---|
| ``full@D`` | full prefill |
| ``prefix@D`` | full prefill with exact-prefix caching |
| ``pic@D/C`` | position-independent caching, pages conditioned by C |
| ``epicK@D`` | EPIC: the first K tokens of every chunk computed again |
| ``topK@text`` | only the text of the K nearest pages, full prefill |
| ``qvpic[@L-H][/C][+alpha=A][+budget=B]`` | QV-PIC at resolutions L and H (72-120) |

D is ``text`` or a resolution in DPI; C is ``native``, ``native-short``, ``prefix-free`` or ``dummy-K``.
"""

from __future__ import annotations

import re

from qvpic_rag.baselines.base import Method
from qvpic_rag.baselines.blocks import TEXT
from qvpic_rag.baselines.epic import Epic
from qvpic_rag.baselines.full import Full
from qvpic_rag.baselines.pic import Pic
from qvpic_rag.baselines.prefix_cache import PrefixCache
from qvpic_rag.baselines.qvpic import QvPic
from qvpic_rag.baselines.subject import Subject
from qvpic_rag.baselines.top_text import TopText
from qvpic_rag.config import RouteConfig
from qvpic_rag.errors import ConfigError

__all__ = ["make_method", "needs_embedder"]

_OVER = re.compile(r"(full|prefix|pic|epic([1-9][0-9]{0,5}))@(text|[1-9][0-9]{1,2})(?:/([a-z0-9-]+))?")
_TOP = re.compile(r"top([1-9][0-9]{0,3})@text")
_QVPIC = re.compile(r"qvpic(?:@([1-9][0-9]{1,2})-([1-9][0-9]{1,2}))?(?:/([a-z0-9-]+))?((?:\+[a-z_]+=[a-z0-9.]+)*)")
_FORMS = "full@D, prefix@D, pic@D/C, epicK@D, topK@text or qvpic[@L-H][/C][+alpha=A][+budget=B]"


def needs_embedder(spec: str) -> bool:
    """Whether the method chooses pages by their embeddings."""
    return spec.startswith(("qvpic", "top"))


def make_method(spec: str, subject: Subject) -> Method:
    """The method that ``spec`` describes, see the module docstring.

    Raises
    ------
    ConfigError
        It describes none.
    UnsupportedModelError
        It is over pictures and the model reads none.
    """
    if match := _QVPIC.fullmatch(spec):
        low, high, conditioning, settings = match.groups()
        dpis = (int(low), int(high)) if low else (72, 120)
        subject.vision  # noqa: B018 - refuses models without pictures, before anything is loaded or compiled
        return QvPic(subject, dpis, conditioning or "native", _route_config(spec, settings), spec)
    if match := _TOP.fullmatch(spec):
        return TopText(subject, int(match[1]))
    if match := _OVER.fullmatch(spec):
        kind, tokens, where, conditioning = match.groups()
        over = TEXT if where == "text" else int(where)
        if over != TEXT:
            subject.vision  # noqa: B018 - as above
            _check_drawn(spec, over)
        if kind == "pic":
            return Pic(subject, over, conditioning or "native")
        if conditioning is None:
            if tokens:
                return Epic(subject, int(tokens), over)
            return Full(subject, over) if kind == "full" else PrefixCache(subject, over)
    raise ConfigError(f"There is no method {spec!r}; write {_FORMS}, such as full@120 or pic@72/prefix-free.")


def _check_drawn(spec: str, dpi: int) -> None:
    if not 24 <= dpi <= 600:
        raise ConfigError(f"Method {spec!r} draws pages at {dpi} DPI; choose 24 to 600.")


def _route_config(spec: str, settings: str) -> RouteConfig:
    values: dict[str, float | int] = {}
    for setting in settings.split("+")[1:]:
        name, _, value = setting.partition("=")
        if name in values:
            raise ConfigError(f"Method {spec!r} sets {name} twice; set it once.")
        try:
            values[name] = {"alpha": float, "budget": int}[name](value)
        except KeyError:
            raise ConfigError(f"Method {spec!r} sets {name}; alpha and budget can be set.") from None
        except ValueError:
            raise ConfigError(f"Method {spec!r} sets {name} to {value}, which is not a number of its kind.") from None
    return RouteConfig(**values)  # type: ignore[arg-type]
