"""Metadata filters, nested ones included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_index.core.vector_stores.types import ExactMatchFilter, FilterCondition, MetadataFilter, MetadataFilters
from llama_index.core.vector_stores.utils import build_metadata_filter_fn
from qvpic_rag.errors import InputError

__all__ = ["matches"]


def matches(metadata: Mapping[str, Any], filters: MetadataFilters) -> bool:
    """Whether metadata pass filters: LlamaIndex's own operators; a group without filters passes.

    Raises
    ------
    InputError
        A filter compares values of different kinds, such as a number with a string.
    """
    results = [
        matches(metadata, each) if isinstance(each, MetadataFilters) else _passes(metadata, each)
        for each in filters.filters
    ]
    if not results:
        return True
    if filters.condition == FilterCondition.OR:
        return any(results)
    if filters.condition == FilterCondition.NOT:
        return not any(results)
    return all(results)


def _passes(metadata: Mapping[str, Any], wanted: MetadataFilter | ExactMatchFilter) -> bool:
    try:
        return bool(build_metadata_filter_fn(lambda _: metadata, MetadataFilters(filters=[wanted]))(""))
    except TypeError as error:
        raise InputError(f"The filter on {wanted.key!r} does not suit the value of a node ({error}).") from error
