"""Other ways to answer from the same pages on the same model, to compare with."""

from qvpic_rag.baselines.full_prefill import FullPrefill

__all__ = ["FullPrefill"]
