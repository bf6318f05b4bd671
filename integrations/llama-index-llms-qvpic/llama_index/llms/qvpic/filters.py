"""Metadata filters, nested ones included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_index.core.vector_stores.types import FilterCondition, MetadataFilters
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

__all__ = ["matches"]


def matches(metadata: Mapping[str, Any], filters: MetadataFilters) -> bool:
    """Whether metadata pass filters: LlamaIndex's own operators; a group without filters passes."""
    results = [
        matches(metadata, each)
        if isinstance(each, MetadataFilters)
        else build_metadata_filter_fn(lambda _: metadata, MetadataFilters(filters=[each]))("")
        for each in filters.filters
    ]
    if not results:
        return True
    if filters.condition == FilterCondition.OR:
        return any(results)
    if filters.condition == FilterCondition.NOT:
        return not any(results)
    return all(results)
