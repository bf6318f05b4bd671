"""Measuring methods on questions with known answers: suites, scores, runs and reports."""

__all__: list[str] = []
