"""LangChain's own tests of chat models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from langchain_qvpic import ChatQVPIC

# A local model has no connection to time out or to try again, and says so instead of ignoring these two.
PARAMS = {"temperature": 0, "max_tokens": 100, "stop": []}


class _Shared:
    @pytest.fixture(autouse=True)
    def _bank(self, full_bank: Path) -> None:
        self._folder = full_bank

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatQVPIC

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "demo", "bank": self._folder}

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        return PARAMS

    @property
    def supports_model_override(self) -> bool:
        return False  # a bank belongs to one model


class TestUnit(_Shared, ChatModelUnitTests):
    pass


class TestIntegration(_Shared, ChatModelIntegrationTests):
    pass
