"""Audits: what became of the evidence, and pages about wrong answers."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from qvpic_rag.config import RenderProfile
from qvpic_rag.errors import InputError, QVPICError
from qvpic_rag.evaluation.audit import audited, write_audit
from qvpic_rag.render import Renderer
from tests.evaluation.runs import answered, example, page, routed, write


def _wrong(name: str, method: str = "qvpic", **differing: Any) -> Any:
    return answered(name, method, 0.0, text="no", **differing)


def cells(index: str, first: str) -> list[str]:
    """The cells of the table row that begins with this."""
    rows = [re.findall(r"<td.*?>(.*?)</td>", row) for row in re.findall(r"<tr>.*?</tr>", index, re.DOTALL)]
    [found] = [row for row in rows if row and row[0] == first]
    return found


@pytest.mark.parametrize(
    ("evidence", "route", "promoted", "rank"),
    [
        ((0,), [(0, True, 0), (1, False, 1)], True, 0),
        ((1,), [(0, True, 0), (1, False, 1)], False, 1),
        ((0, 1), [(0, True, 0), (1, False, 1)], False, 1),
        ((0, 1), [(1, True, 0), (0, True, 1)], True, 1),
        ((0,), [(1, True, 0)], False, None),
        ((0, 1), [(1, True, 0)], False, None),
        ((), [(0, True, 0)], None, None),
        (None, [(0, True, 0)], None, None),
        ((0,), [], None, None),
    ],
)
def test_evidence(evidence: Any, route: list[tuple[int, bool, int]], promoted: bool | None, rank: int | None) -> None:
    pages = tuple(routed(place, promoted=high, rank=at) for place, high, at in route)
    found = audited(example("a", pages=2, evidence=evidence), answered("a", "qvpic", route=pages))
    assert (found.promoted, found.rank, found.right) == (promoted, rank, True)


@pytest.mark.parametrize(
    ("evidence", "missed", "every", "promoted", "rank"),
    [
        ((0, 1), False, True, False, 2),
        ((0, 1), False, False, True, 0),
        ((1, 2), False, False, False, 1),
        ((0, 3), False, False, True, 0),  # page 3 is not in the request
        ((0, 3), False, True, False, None),
        ((3,), False, False, False, None),
        ((), True, True, False, None),
        ((), True, False, False, None),
        ((0,), True, True, False, None),
        ((0,), True, False, False, None),
        ((), False, False, None, None),
        (None, False, False, None, None),
    ],
)
def test_evidence_of_documents_and_evidence_that_was_missed(
    evidence: Any, missed: bool, every: bool, promoted: bool | None, rank: int | None
) -> None:
    route = tuple(routed(place, promoted=place == 0, rank=at) for place, at in ((0, 0), (1, 2), (2, 1)))
    asked = example("a", pages=4, evidence=evidence, missed=missed, evidence_all=every)
    found = audited(asked, answered("a", "qvpic", route=route))
    assert (found.promoted, found.rank) == (promoted, rank)
    assert audited(asked, answered("a", "full@72")).promoted is None


def test_what_retrieval_missed_lowers_the_rate(tmp_path: Path) -> None:
    route = (routed(0, promoted=True, rank=0),)
    rows: list[Any] = [example("a", evidence_all=False), example("b", evidence=(), missed=True, evidence_all=False)]
    rows += [answered("a", "qvpic", route=route), _wrong("b", route=route)]
    index = write_audit(write(tmp_path, ["qvpic"], rows))
    text = index.read_text(encoding="utf-8")
    assert cells(text, "all") == ["all", "2", "2", "1/2 (50%)", "1.00", "1/2 (50%)", "1/1 (100%)", "0/1 (0%)"]
    assert "Evidence that is documents is promoted where any page of them is" in text
    assert "Evidence that is pages" not in text
    page = (index.parent / "1.html").read_text(encoding="utf-8")
    assert "evidence not promoted" in page
    assert "There is evidence that retrieval missed." in page


def test_an_answer_that_failed_is_wrong() -> None:
    assert not audited(example("a"), answered("a", "m", error="too long")).right
    assert not audited(example("a"), answered("a", "m", 0.9)).right


def test_the_table(tmp_path: Path) -> None:
    low, high = routed(0, promoted=False, rank=2), routed(0, promoted=True, rank=0, dpi=120)
    rows: list[Any] = [
        example("a", tags=("name",)), answered("a", "qvpic", route=(high,)), answered("a", "full@72"),
        example("b", tags=("name", "two-hop")), _wrong("b", route=(low,)), _wrong("b", "full@72", error="x"),
        example("c", tags=("number",)), answered("c", "qvpic", route=(low,)), answered("c", "full@72"),
        example("d", evidence=None), _wrong("d", route=(high,)), answered("d", "full@72"),
    ]  # fmt: skip
    index = write_audit(write(tmp_path, ["full@72", "qvpic"], rows))
    assert index == tmp_path / "audit" / "index.html"
    text = index.read_text(encoding="utf-8")
    assert cells(text, "all") == ["all", "4", "3", "1/3 (33%)", "2.33", "2/4 (50%)", "1/1 (100%)", "1/2 (50%)"]
    assert cells(text, "name") == ["name", "2", "2", "1/2 (50%)", "2.00", "1/2 (50%)", "1/1 (100%)", "0/1 (0%)"]
    assert cells(text, "two-hop") == ["two-hop", "1", "1", "0/1 (0%)", "3.00", "0/1 (0%)", "-", "0/1 (0%)"]
    assert cells(text, "number") == ["number", "1", "1", "0/1 (0%)", "3.00", "1/1 (100%)", "-", "1/1 (100%)"]
    assert "<td>4</td><td>2</td><td>2</td><td>0</td>" in text, "qvpic"
    assert "<td>4</td><td>3</td><td>1</td><td>1</td>" in text, "full@72"
    assert "2 of 2 wrong answers" in text
    assert sorted(path.name for path in index.parent.iterdir()) == ["1.html", "2.html", "index.html"]


def test_pictures_are_what_the_model_saw(tmp_path: Path) -> None:
    pages = (page(0, "Nothing is here."), page(1))
    route = (routed(0, promoted=False, rank=1), routed(1, promoted=True, rank=0, dpi=120))
    rows = [example("a", pages=2, evidence=(1,)), _wrong("a", route=route)]
    rows[0] = example("a", evidence=(1,)).__class__(**{**rows[0].__dict__, "pages": pages})
    text = (write_audit(write(tmp_path, ["qvpic"], rows)).parent / "1.html").read_text(encoding="utf-8")
    found = re.findall(r'<figure class="(\w+)">.*?base64,(.*?)">', text)
    assert [kind for kind, _ in found] == ["other", "evidence"]
    renderer = Renderer(RenderProfile.load("demo"))
    for (_, data), shown, dpi in zip(found, pages, (72, 120), strict=True):
        with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
            assert picture.convert("RGB").tobytes() == renderer.image(shown, dpi).tobytes()
    assert cells(text, "note.txt, page 2") == ["note.txt, page 2", "120 DPI", "0.500", "1", "yes", "40", "yes"]
    for part in ("Which room?", "B214", "evidence promoted, rank 1", "ended by stop"):
        assert part in text


def test_text_is_shown_as_text(tmp_path: Path) -> None:
    rows = [example("a"), _wrong("a", "top4@text", route=(routed(0, promoted=True, rank=0, dpi=None),))]
    text = (write_audit(write(tmp_path / "1", ["top4@text"], rows)).parent / "1.html").read_text(encoding="utf-8")
    assert "<img" not in text
    assert '<pre dir="auto">The room of Omar Reyes is B214.</pre>' in text
    rows = [example("a"), _wrong("a", route=(routed(0, promoted=True, rank=0),))]
    folder = write(tmp_path / "2", ["qvpic"], rows, model__profile=None)
    assert "<img" not in (write_audit(folder).parent / "1.html").read_text(encoding="utf-8")


def test_evidence_that_was_left_out(tmp_path: Path) -> None:
    rows = [example("a", pages=3, evidence=(0, 2)), _wrong("a", route=(routed(0, promoted=True, rank=0),))]
    text = (write_audit(write(tmp_path, ["qvpic"], rows)).parent / "1.html").read_text(encoding="utf-8")
    assert "<b>Evidence that was not in the request:</b> note.txt, page 3" in text


def test_an_answer_that_failed_says_why(tmp_path: Path) -> None:
    route = (routed(0, promoted=True, rank=0),)
    rows = [
        example("a"),
        _wrong("a", route=(), error="out of <memory>"),
        example("b"),
        answered("b", "qvpic", route=route),
    ]
    text = (write_audit(write(tmp_path, ["qvpic"], rows)).parent / "1.html").read_text(encoding="utf-8")
    assert "<b>Failed:</b> out of &lt;memory&gt;" in text
    assert "evidence not known" in text


def test_everything_from_outside_is_escaped(tmp_path: Path) -> None:
    bad = '"><script>alert(1)</script>'
    shown = page(0, bad, source=bad)
    rows = [
        example(bad, bad, kind=bad, before=bad, after=bad, query=bad, answers=(bad,), tags=(bad,)),
        answered(bad, bad, 0.0, text=bad, finish_reason=bad, error=bad, route=(routed(0, promoted=True, rank=0),)),
    ]
    rows[0] = rows[0].__class__(**{**rows[0].__dict__, "pages": (shown,)})
    index = write_audit(write(tmp_path, [bad], rows, model__name=bad))
    for path in index.parent.iterdir():
        text = path.read_text(encoding="utf-8")
        assert "<script" not in text
        assert '"&gt;' not in text
    assert sorted(path.name for path in index.parent.iterdir()) == ["1.html", "index.html"]
    rows[1] = answered(bad, bad, 0.0, text=bad, route=(routed(0, promoted=True, rank=0, dpi=None),))
    other = write_audit(write(tmp_path / "text", [bad], rows)).parent / "1.html"
    assert "<script" not in other.read_text(encoding="utf-8")


def test_ids_never_become_paths(tmp_path: Path) -> None:
    rows = [example("../../x"), _wrong("../../x", route=(routed(0, promoted=True, rank=0),))]
    write_audit(write(tmp_path / "run", ["qvpic"], rows), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["1.html", "index.html"]


def test_most_takes_from_methods_in_turn(tmp_path: Path) -> None:
    route = (routed(0, promoted=True, rank=0),)
    rows: list[Any] = [example(f"e{n}") for n in range(10)]
    rows += [_wrong(f"e{n}", method, route=route) for method in ("qvpic", "qvpic@72-144") for n in range(10)]
    folder = write(tmp_path / "run", ["qvpic", "qvpic@72-144"], rows)
    index = write_audit(folder, most=3)
    text = index.read_text(encoding="utf-8")
    assert "3 of 20 wrong answers of methods that route have a page" in text
    assert re.findall(r'class="soft">(\S+), evidence promoted', text) == ["qvpic", "qvpic@72-144", "qvpic"]
    assert len(list(index.parent.iterdir())) == 4
    only = write_audit(folder, tmp_path / "one", method="qvpic@72-144").read_text(encoding="utf-8")
    assert "10 of 10 wrong answers" in only
    assert not write_audit(folder, tmp_path / "none", most=0).with_name("1.html").exists()


def test_pages_of_an_earlier_audit_are_removed_and_nothing_else(tmp_path: Path) -> None:
    route = (routed(0, promoted=True, rank=0),)
    rows: list[Any] = [row for n in range(12) for row in (example(f"e{n}"), _wrong(f"e{n}", route=route))]
    folder = write(tmp_path / "run", ["qvpic"], rows)
    out = write_audit(folder, most=10**24).parent
    assert {path.name for path in out.iterdir()} == {"index.html", *(f"{n:02}.html" for n in range(1, 13))}
    for name in ("2024.html", "3.html", "mine.html", "1.htm", "0.html"):
        (out / name).write_text("<title>Mine</title>")
    (out / "99.html").mkdir()
    write_audit(folder, most=2)
    mine = {"2024.html", "3.html", "mine.html", "1.htm", "0.html", "99.html"}
    assert {path.name for path in out.iterdir()} == {"index.html", "1.html", "2.html", *mine}


def test_methods_without_routes_are_counted(tmp_path: Path) -> None:
    index = write_audit(write(tmp_path, ["full@72"], [example("a"), _wrong("a", "full@72")]))
    text = index.read_text(encoding="utf-8")
    assert "No method here chooses pages" in text
    assert "<td>1</td><td>0</td><td>1</td><td>0</td>" in text
    assert [path.name for path in index.parent.iterdir()] == ["index.html"]


def test_several_models(tmp_path: Path) -> None:
    for name in ("one", "two"):
        rows = [example("a"), _wrong("a", route=(routed(0, promoted=True, rank=0),))]
        write(tmp_path / name, ["qvpic"], rows, model__name=name)
    text = write_audit(tmp_path).read_text(encoding="utf-8")
    assert "<h2>one, qvpic</h2>" in text
    assert "<h2>two, qvpic</h2>" in text
    assert "2 of 2 wrong answers" in text


def test_what_cannot_be_audited(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run"):
        write_audit(tmp_path)
    folder = write(tmp_path / "run", ["qvpic"], [example("a"), _wrong("a")])
    with pytest.raises(InputError, match="has no answers of 'full@72'; its methods are qvpic"):
        write_audit(folder, method="full@72")
    (tmp_path / "file").write_text("")
    with pytest.raises(QVPICError, match="The audit cannot be written"):
        write_audit(folder, tmp_path / "file")
