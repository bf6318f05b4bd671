"""Methods as users write them: what is written is what the method is called; everything else is refused in one way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qvpic_rag.baselines.spec import make_method, read_spec
from qvpic_rag.errors import ConfigError, UnsupportedModelError
from tests.baselines.conftest import World

SPECS = {
    "full@text": "full@text",
    "full@72": "full@72",
    "full@24": "full@24",
    "full@600": "full@600",
    "prefix@text": "prefix@text",
    "prefix@120": "prefix@120",
    "pic@text": "pic@text/native",
    "pic@72": "pic@72/native",
    "pic@72/native": "pic@72/native",
    "pic@text/native-short": "pic@text/native-short",
    "pic@120/prefix-free": "pic@120/prefix-free",
    "pic@120/dummy-16": "pic@120/dummy-16",
    "epic2@text": "epic2@text",
    "epic16@120": "epic16@120",
    "top4@text": "top4@text",
    "qvpic": "qvpic",
    "qvpic@72-144": "qvpic@72-144",
    "qvpic/prefix-free": "qvpic/prefix-free",
    "qvpic+alpha=0.5": "qvpic+alpha=0.5",
    "qvpic+budget=0": "qvpic+budget=0",
    "qvpic@60-96/dummy-2+alpha=1+budget=8": "qvpic@60-96/dummy-2+alpha=1+budget=8",
}
REFUSED = [
    "", "full", "full@", "full@0", "full@9", "full@23", "full@601", "full@1000", "full@072", "full @text", "full@ text",
    "Full@text", "full@text/native", "full@\ntext", "full@-72", "prefix@text/native", "pic", "pic@", "pic@72/",
    "pic@72/other", "pic@72/dummy-0", "pic@72/native/native", "epic@text", "epic0@text", "epic-1@text", "epic2",
    "epic2@text/native", "epic02@text", "epic9999999@text", "top@text", "top0@text", "top4@72", "top4",
    "top4@text/native", "qvpic@72", "qvpic@120-72", "qvpic@72-72", "qvpic@10-72", "qvpic@72-999", "qvpic/other",
    "qvpic@text", "qvpic+alpha=", "qvpic+alpha=0", "qvpic+alpha=1.5", "qvpic+alpha=nan", "qvpic+alpha=inf",
    "qvpic+alpha=1e400", "qvpic+budget=-1", "qvpic+budget=1.5", "qvpic+budget=2000000", "qvpic+gamma=1",
    "qvpic+router=other", "qvpic+alpha=0.5+alpha=0.6", "qvpic+budget=1+budget=1", "qvpic+", "qvpic+alpha=0.5/native",
    "full@text,full@72", "qvpic+alpha", "qvpic+alpha=x", "qvpic+budget=" + "9" * 400, "qvpic+budget=" + "9" * 5000,
]  # fmt: skip
PICTURES = ["full@72", "prefix@72", "pic@72", "pic@72/prefix-free", "epic2@72", "qvpic", "qvpic@72-144/dummy-1"]


@pytest.mark.parametrize("spec", SPECS)
def test_names(spec: str, world: Callable[..., World]) -> None:
    """A method's name is what was written, with the conditioning that was left out; and it makes that method again."""
    here = world("qwen2_vl")
    method = here.method(spec)
    assert method.name == SPECS[spec]
    again = here.method(method.name)
    assert (again.name, type(again)) == (method.name, type(method))


@pytest.mark.parametrize("spec", SPECS)
def test_spaces_around_a_method_mean_nothing(spec: str) -> None:
    assert [read_spec(each).name for each in f"full@24, {spec} ,\t{spec}\n".split(",")[1:]] == [SPECS[spec]] * 2


def test_names_tell_methods_apart() -> None:
    assert len(set(SPECS.values())) == len(SPECS) - 1  # pic@72 and pic@72/native are one


@pytest.mark.parametrize("spec", REFUSED, ids=lambda spec: repr(spec[:40]))
def test_what_is_no_method(spec: str, world: Callable[..., World]) -> None:
    with pytest.raises(ConfigError) as caught:
        world("qwen2_vl").method(spec)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("spec", PICTURES)
def test_methods_over_pictures_need_a_model_that_reads_them(spec: str, world: Callable[..., World]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"reads no pictures; choose methods over text"):
        world("llama").method(spec)


@pytest.mark.parametrize("spec", SPECS)
def test_who_needs_an_embedder(spec: str) -> None:
    assert read_spec(spec).ranks is spec.startswith(("qvpic", "top"))


PARTS = st.sampled_from(
    ["full", "prefix", "pic", "epic", "top", "qvpic", "@", "text", "72", "120", "-", "/", "native", "-short", "dummy-",
     "prefix-free", "+", "alpha", "budget", "=", "0", "1", "4", ".", "e", "nan", "inf", "x", " ", "\n", "٣", "_"]
)  # fmt: skip
GARBAGE = st.one_of(st.text(max_size=30), st.lists(PARTS, max_size=12).map("".join))


@given(spec=GARBAGE)
@example(spec="qvpic+alpha=1e999")
@example(spec="qvpic+budget=0x1")
@example(spec="epic1@٣٣")
def test_anything_is_a_method_or_refused(world: Callable[..., World], spec: str) -> None:
    for family in ("qwen2_vl", "llama"):
        refusals = (ConfigError,) if family == "qwen2_vl" else (ConfigError, UnsupportedModelError)
        with suppress(*refusals):
            method = make_method(spec, world(family).subject)
            assert make_method(method.name, world(family).subject).name == method.name
