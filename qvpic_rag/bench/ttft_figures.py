"""What the measurement of first tokens found: samples, their summary, and a table."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import qvpic_rag
from qvpic_rag.console import counted

__all__ = ["QVPIC_METHOD", "Spread", "TtftFigures", "environment", "spread"]

QVPIC_METHOD = "qvpic"
"""The method that the others are compared with."""


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    def text(self, form: str) -> str:
        """Such as ``12.1 (11.9 to 12.4)``."""
        return f"{self.median:{form}} ({self.low:{form}} to {self.high:{form}})"


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles of at least one value."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, processor and accelerator."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "qvpic_rag": qvpic_rag.__version__,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "accelerator": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


@dataclass(frozen=True)
class TtftFigures:
    """One run.

    Attributes
    ----------
    settings : Mapping[str, Any]
        What was asked for, and the model that came of it.
    environment : Mapping[str, Any]
        From :func:`environment`.
    tokens : Mapping[str, int]
        Method -> context tokens in the cache when the first token is known.
    offline : Mapping[str, float]
        ``72``, ``120``, ``text`` -> seconds of compiling one page, the median.
    stages : Mapping[str, Sequence[Mapping[str, float]]]
        Method -> one object a round: stage -> milliseconds. A method's time to first token is their sum.
    transfer : Sequence[Mapping[str, float]]
        One object a round, from a pass of its own: what QV-PIC's stage ``link`` is made of, with ``load`` (host memory
        to device) finished before ``anchor`` (rotation and placing) begins, milliseconds.
    """

    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    tokens: Mapping[str, int]
    offline: Mapping[str, float]
    stages: Mapping[str, Sequence[Mapping[str, float]]]
    transfer: Sequence[Mapping[str, float]]

    def ttft(self, method: str, *, leave_out: str = "") -> list[float]:
        """Milliseconds to the first token in each round, without a stage where one is named."""
        return [sum(value for stage, value in each.items() if stage != leave_out) for each in self.stages[method]]

    def ratios(self, method: str, *, leave_out: str = "") -> list[float]:
        """A method's time over QV-PIC's, round by round."""
        ours = self.ttft(QVPIC_METHOD)
        return [theirs / mine for theirs, mine in zip(self.ttft(method, leave_out=leave_out), ours, strict=True)]

    def shares(self) -> dict[str, Spread]:
        """Stage of QV-PIC -> its share of the time to the first token, 0 to 1."""
        total = self.ttft(QVPIC_METHOD)
        rounds = self.stages[QVPIC_METHOD]
        return {
            stage: spread([each[stage] / whole for each, whole in zip(rounds, total, strict=True)])
            for stage in rounds[0]
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything as a JSON-able object: summary and samples."""
        return {
            "format": 1,
            "settings": dict(self.settings),
            "environment": dict(self.environment),
            "offline_seconds_per_page": dict(self.offline),
            "methods": {
                method: {
                    "context_tokens": self.tokens[method],
                    "ttft_ms": asdict(spread(self.ttft(method))),
                    "over_qvpic": asdict(spread(self.ratios(method))),
                    "over_qvpic_without_prepare": asdict(spread(self.ratios(method, leave_out="prepare"))),
                    "stages_ms": [dict(each) for each in self.stages[method]],
                }
                for method in self.stages
            },
            "qvpic_shares": {stage: asdict(share) for stage, share in self.shares().items()},
            "qvpic_link_ms": [dict(each) for each in self.transfer],
        }

    def markdown(self) -> str:
        """The tables of :mod:`docs/results/ttft.md`."""
        given, where = self.settings, self.environment["accelerator"] or self.settings["device"]
        lines = [
            f"{given['geometry']} at scale {given['scale']:g}: {given['layers']} decoder and {given['vision_layers']} "
            f"vision layers, {given['parameters'] / 1e9:.2f} billion random parameters, {given['dtype']} on {where}. "
            f"{counted(given['pages'], 'page')}, {given['promoted']} promoted, {counted(given['rounds'], 'round')}; "
            "medians, with quartiles in brackets.",
            "",
            "| method | context tokens | first token, ms | over QV-PIC | without preparing pictures |",
            "| --- | --- | --- | --- | --- |",
        ]
        for method in self.stages:
            times, ratios = spread(self.ttft(method)), spread(self.ratios(method))
            bare = "" if method == QVPIC_METHOD else spread(self.ratios(method, leave_out="prepare")).text(".2f")
            lines.append(f"| {method} | {self.tokens[method]} | {times.text('.1f')} | {ratios.text('.2f')} | {bare} |")
        lines += ["", "| stage of QV-PIC | ms | share |", "| --- | --- | --- |"]
        for stage, share in self.shares().items():
            times = spread([each[stage] for each in self.stages[QVPIC_METHOD]])
            lines.append(f"| {stage} | {times.text('.2f')} | {100 * share.median:.1f}% |")
            if stage == "link":
                for part in self.transfer[0]:
                    times = spread([each[part] for each in self.transfer])
                    lines.append(f"| of that, {part}, in a pass of its own | {times.text('.2f')} | |")
        seconds = ", ".join(f"{name} {value:.2f} s" for name, value in self.offline.items())
        lines += ["", f"Compiling a page ahead of questions: {seconds}. Embedding the question is not included."]
        return "\n".join(lines)
