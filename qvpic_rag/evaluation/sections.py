"""The sections of a report about one run; a section is there when the methods that it is about are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from qvpic_rag.evaluation import plots
from qvpic_rag.evaluation.claims import claims
from qvpic_rag.evaluation.document import Picture, Section, Table
from qvpic_rag.evaluation.naming import MethodName, defaults, media
from qvpic_rag.evaluation.records import Example
from qvpic_rag.evaluation.tables import MethodFigures, Run, method_figures, served_figures
from qvpic_rag.evaluation.wording import (
    claim_sentence,
    count,
    main_table,
    offline_table,
    ratio,
    said,
    served_table,
    with_interval,
)

__all__ = ["run_sections"]


def run_sections(run: Run, number: int, level: int = 2) -> Iterator[Section]:
    """Everything about one run.

    Parameters
    ----------
    number : int
        Which run of the report; part of the pictures' names.
    level : int
        Of the headings.
    """
    figures = method_figures(run)
    by_name = {row.method: row for row in figures}

    def section(title: str, *parts: str | tuple[str, ...] | Table | Picture) -> Section:
        return Section(title, parts, level)

    def picture(name: str, text: str, data: bytes) -> Picture:
        return Picture(f"{number}-{name}.png", text, data)

    yield section("What was run", *_settings(run))
    yield section("All methods", *_overview(run), main_table(figures, run.reference))
    found = claims(run)
    if found:
        note = (
            "Seen: the whole interval of the paired difference is on the claim's side of zero. Reversed: on the other. "
            "The intervals are of one comparison each; of many, some miss by chance."
        )
        yield section("What the paper claims", note, tuple(claim_sentence(each) for each in found))
    yield from _conditioning(run, by_name, section, picture)
    yield from _times(run, by_name, section, picture)
    yield from _ablation(run, by_name, section, picture)
    yield from _sensitivity(run, by_name, section, picture)
    yield from _splits(run, section)
    if run.served:
        yield section("Several callers at once", *_served(run))
    if any(row.offline_seconds is not None for row in figures):
        yield section("Ahead of questions", offline_table(figures))


_CROWD = 6  # variants of alpha and budget that a plot of all methods can name
_Section = Callable[..., Section]
_Picture = Callable[[str, str, bytes], Picture]
_Figures = dict[str, MethodFigures]


def _settings(run: Run) -> Iterator[str | Table]:
    settings = run.settings
    rows = [[f"suite {name}", said(value)] for name, value in settings["suite"].items()]
    for name, value in settings["model"].items():
        rows.append([f"model {name}", said(value.get("name") if name == "profile" and value else value)])
    for name in ("preset", "embedder", "seed", "started"):
        if name in settings:
            rows.append([name, said(settings[name])])
    rows += [[name, said(value)] for name, value in settings.get("environment", {}).items()]
    others = set(settings) - {"format", "suite", "model", "methods", "preset", "embedder", "seed", "started"}
    rows += [[name, said(settings[name])] for name in sorted(others - {"environment"})]
    yield Table(["setting", "value"], rows, texts=2)


def _overview(run: Run) -> Iterator[str]:
    examples = run.examples.values()
    groups = {example.group for example in examples}
    cut = sum(example.cut for example in examples)
    errors = sum(bool(row.error) for held in run.answers.values() for row in held.values())
    yield (
        f"{count(len(run.examples), 'example')} in {count(len(groups), 'group')}; {count(cut, 'context')} cut in the "
        f"middle to fit; {count(errors, 'answer')} failed, which count as wrong."
    )
    short = [each for each in run.settings["methods"] if len(run.answers.get(each, {})) < len(run.examples)]
    if short:
        yield (
            f"The run is not complete: {', '.join(short)} did not answer every example. Compare methods by the column "
            "of differences, which is over the examples that both answered."
        )
    yield (
        "Intervals are 95% bootstrap intervals that resample groups. TTFT is the time to first token of an example, "
        "the mean of its repetitions; its ratio is the median over examples of the ratio on each."
    )
    if any(each.startswith("prefix@") for each in run.settings["methods"]):
        yield (
            "Exact-prefix caching was timed with a context that it had just seen, its best case; the first question "
            "about a context costs what full prefill costs."
        )


def _conditioning(run: Run, figures: _Figures, section: _Section, picture: _Picture) -> Iterator[Section]:
    panels, lines = [], []
    for medium in media(run.methods, "pic"):
        held = [each for each in run.methods if (each.family, each.medium) == ("pic", medium)]
        bars = [
            plots.Bar(each.conditioning, f1, "pic", strong=each.conditioning == "native")
            for each in sorted(held, key=lambda method: method.strength)
            if (f1 := figures[each.name].f1) is not None
        ]
        if len(bars) > 1:
            panels.append((_medium(medium), bars))
            full = figures.get(f"full@{medium}")
            lines.append((f"full@{medium}", full.f1) if full is not None and full.f1 is not None else None)
    if panels:
        drawn = picture("conditioning", "F1 by what pages are conditioned on", plots.bars(panels, lines=lines))
        note = "F1 of page caches by what stands before a page when it is compiled."
        yield section("Conditioning", note + " Dashed: full prefill." * any(lines), drawn)


def _times(run: Run, figures: _Figures, section: _Section, picture: _Picture) -> Iterator[Section]:
    def point(method: MethodName, label: str, line: str = "") -> plots.Point | None:
        row = figures[method.name]
        if row.f1 is None or row.ttft is None:
            return None
        return plots.Point(label, row.ttft, row.f1, method.family, line)

    sweep: list[plots.Point | None] = []
    for family in ("full", "pic"):
        for medium in media(run.methods, family):
            sweep += [
                point(each, each.name, family)
                for each in run.methods
                if (each.family, each.medium) == (family, medium)
                and each.dpi is not None
                and each.conditioning in ("", "native")
            ]
    drawn = [each for each in sweep if each is not None]
    if any(sum(each.line == family for each in drawn) > 1 for family in ("full", "pic")):
        drawn += [found for each in defaults(run.methods) if (found := point(each, each.name))]
        note = "F1 against time to first token; lines join the resolutions of full prefill and of native page caches."
        shown = picture("resolutions", "F1 against time to first token by resolution", plots.scatter(drawn))
        yield section("Resolutions", note, shown)
    plain = defaults(run.methods)
    swept = [each for each in _swept(run.methods) if each not in plain]
    left_out = swept if len(swept) > _CROWD else []
    held = [each for each in run.methods if each not in left_out]
    everything = [found for each in held if (found := point(each, each.name)) is not None]
    if len(everything) > 1:
        note = "F1 against time to first token. Thin lines are the intervals."
        note += " The variants of alpha and budget have a section of their own." * bool(left_out)
        yield section("Quality and time", note, picture("times", "F1 against TTFT", plots.scatter(everything)))


def _ablation(run: Run, figures: _Figures, section: _Section, picture: _Picture) -> Iterator[Section]:
    for both in defaults(run.methods):
        low, high = both.pair
        wanted = [
            ("neither", ("pic", low, "prefix-free"), "other"),
            ("native prefix", ("pic", low, "native"), "pic"),
            ("routing", ("qvpic", both.medium, "prefix-free"), "epic"),
            ("both", ("qvpic", both.medium, "native"), "qvpic"),
            ("full prefill", ("full", high, ""), "full"),
        ]
        bars = []
        for label, parts, color in wanted:
            for each in run.methods:
                same = (each.family, each.medium, each.conditioning) == parts
                f1 = figures[each.name].f1
                if same and f1 is not None and (each.family != "qvpic" or each.options == both.options):
                    bars.append(plots.Bar(f"{label}\n{each.name}", f1, color))
                    break
        if [bar.label.partition("\n")[0] for bar in bars][:4] == [label for label, _, _ in wanted[:4]]:
            yield section(
                f"Conditioning and routing apart ({low} and {high} DPI)",
                picture(f"ablation-{low}-{high}", "F1 with neither, either and both", plots.bars([("", bars)])),
            )


def _sensitivity(run: Run, figures: _Figures, section: _Section, picture: _Picture) -> Iterator[Section]:
    for router in ("dense", "hybrid"):
        swept = [each for each in _swept(run.methods) if each.options["router"] == router]
        alphas = sorted({each.options["alpha"] for each in swept}, key=float)
        budgets = sorted({each.options["budget"] for each in swept}, key=float)
        if len(alphas) < 2 and len(budgets) < 2:
            continue
        found = {
            (each.options["alpha"], each.options["budget"], pages): f1.mean
            for each in swept
            for pages, f1 in run.split(each.name, _pages).items()
        }
        panels = [
            (count(pages, "page"), budgets, alphas, [[found.get((a, b, pages)) for b in budgets] for a in alphas])
            for pages in sorted({pages for _, _, pages in found})
        ]
        if panels:
            drawn = picture(f"alpha-{router}", "F1 by alpha and budget", plots.heat_map(panels, "budget", "alpha"))
            yield section(f"Alpha and budget ({router} router)", "F1 by number of pages.", drawn)
    pairs = [
        ("-".join(each.pair), f1, figures[each.name])
        for each in defaults(run.methods)
        if (f1 := figures[each.name].f1) is not None
    ]
    if len(pairs) > 1:
        bars = [plots.Bar(pair, f1, "qvpic") for pair, f1, _ in pairs]
        rows = [[pair, with_interval(f1), ratio(row.ratio)] for pair, f1, row in pairs]
        head = ["low-high DPI", "F1 [95%]", f"TTFT / {run.reference or 'full prefill'}"]
        drawn = picture("pairs", "F1 by pair of resolutions", plots.bars([("", bars)]))
        yield section("Pairs of resolutions", drawn, Table(head, rows))


def _swept(methods: list[MethodName]) -> list[MethodName]:
    """QV-PIC with any alpha and budget, otherwise as the paper has it but for the router."""
    return [each for each in methods if each.is_qvpic(alpha=None, budget=None, router=None)]


def _splits(run: Run, section: _Section) -> Iterator[Section]:
    splits: list[tuple[str, Callable[[Example], Any], Callable[[Any], str]]] = [
        ("By number of pages", _pages, lambda pages: count(pages, "page")),
        ("By kind", lambda example: example.kind, lambda kind: kind or "no kind"),
    ]
    for title, of, shown in splits:
        sizes = Counter(map(of, run.examples.values()))
        if len(sizes) > 1:
            values = sorted(sizes)
            rows = [["examples", *(str(sizes[value]) for value in values)]]
            for method in run.answers:
                found = run.split(method, of)
                rows.append([method, *(with_interval(found.get(value)) for value in values)])
            yield section(title, Table(["F1 [95%]", *map(shown, values)], rows))


def _served(run: Run) -> Iterator[str | Table]:
    found = served_figures(run)
    yield (
        "Times run from a request to its answer, the wait for its turn included. Methods were asked one after the "
        "other, not in turns, so what else the machine did shows: compare methods by the first table. P95 is given "
        "from 20 requests on, P99 from 100 on."
    )
    left_out = [f"{each.method} with {each.callers} callers ({each.n})" for each in found if not each.at_once]
    if left_out:
        yield f"Left out, because there were fewer requests than callers: {', '.join(left_out)}."
    shown = [each for each in found if each.at_once]
    if shown:
        yield served_table(shown)


def _pages(example: Example) -> int:
    return len(example.pages)


def _medium(medium: str) -> str:
    return "text" if medium == "text" else f"{medium} DPI"
