"""Ways to answer from the same pages on the same model, one file each, to compare with.

``base.py`` is what they have in common, ``spec.py`` how users name them, ``subject.py`` the model they are run on.
"""

from qvpic_rag.baselines.full_prefill import FullPrefill

__all__ = ["FullPrefill"]
