"""``QVPIC``: documents in, answers out."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import IO, Any

from PIL import Image

from qvpic_rag.bank import Bank
from qvpic_rag.config import GenerateConfig, RenderProfile, RequestConfig, RouteConfig, check_dpis, check_storage
from qvpic_rag.embed import load_embedder
from qvpic_rag.errors import ConfigError, InputError
from qvpic_rag.models import BUNDLED, load_model
from qvpic_rag.models.device import default_dtype, resolve_device
from qvpic_rag.pipeline.arguments import check_arguments, conversation, documents_of, profile_of
from qvpic_rag.pipeline.conversation import Asked, asked
from qvpic_rag.pipeline.engine import Engine, make_recipe
from qvpic_rag.pipeline.ingest import IngestReport, ingest
from qvpic_rag.pipeline.request import Question, answer
from qvpic_rag.pipeline.shared import EMBEDDERS, MODELS
from qvpic_rag.pipeline.stream import AnswerStream
from qvpic_rag.progress import Progress, bar
from qvpic_rag.records import Answer, Document, Message, Page
from qvpic_rag.render import Renderer
from qvpic_rag.template import ChatTemplate

__all__ = ["QVPIC"]

_log = logging.getLogger(__name__)

_DEFAULT_DPIS = (72, 120)  # the paper's setting


class QVPIC:
    """Question answering over documents whose pages are precompiled KV caches.

    Build one with :meth:`from_pretrained` or :meth:`open`; use it as a context manager or call :meth:`close`. One
    object may be used from several threads; requests that need the model wait for each other.
    """

    def __init__(self, engine: Engine, request: RequestConfig, route: RouteConfig) -> None:
        self._engine = engine
        self._request = request
        self._route = route

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        bank: str | os.PathLike[str],
        *,
        embedder: str | None = None,
        profile: str | RenderProfile | None = None,
        dpis: tuple[int, int] | None = None,
        storage: str | tuple[str, str] | None = None,
        system_prompt: str | None = None,
        top_k: int = 8,
        alpha: float = 0.65,
        budget: int = 4,
        token_budget: int | None = None,
        router: str = "dense",
        max_context_tokens: int | None = None,
        overflow: str = "drop",
        on_miss: str = "compile",
        max_waiting: int = 1024,
        device: str | None = None,
        dtype: str | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        namespace: str = "default",
        batch_size: int = 4,
        strict: bool = False,
        ram_bytes: int = 2**30,
        remote: str | None = None,
    ) -> QVPIC:
        """Load a model and open its bank, which is created where there is none.

        What is None is taken from the bank where one exists, else from the defaults below.

        Parameters
        ----------
        model : str
            ``demo`` (the bundled reader, offline), a local folder, or a hub id.
        bank : path
            Folder of the bank.
        embedder : str, optional
            ``BAAI/bge-m3`` by default (``demo`` for a bundled reader: all-MiniLM-L6-v2), or any folder or hub id of
            a sentence-embedding model.
        profile : str or RenderProfile, optional
            How text is rendered: ``glyph`` by default (a bundled reader's own is called as it is), or a TOML file's
            path.
        dpis : tuple[int, int], optional
            Low and high resolution, dots per inch; the paper's 72 and 120 by default.
        storage : str or tuple[str, str], optional
            How blocks are stored: ``native`` (the model's dtype) by default, ``int8`` or ``int4`` (about a half and a
            quarter of bfloat16's bytes, read with small errors), or a pair for the low and the high resolution.
        system_prompt : str, optional
            Part of the prefix that pages are compiled under, so another one needs another bank.
        top_k, max_context_tokens, overflow, on_miss, max_waiting
            See :class:`~qvpic_rag.config.RequestConfig`.
        alpha, budget, token_budget, router
            See :class:`~qvpic_rag.config.RouteConfig`. With ``router="hybrid"``, :meth:`ingest` also stores what that
            needs of every page: about 2 KB per token of its text.
        device, dtype, trust_remote_code, revision
            See :func:`~qvpic_rag.models.load_model`.
        namespace : str
            Documents of one namespace are invisible in others.
        batch_size : int
            Pages per compiling forward pass; lower it where memory is short.
        strict : bool
            Refuse documents with characters that no font draws, instead of warning.
        ram_bytes : int
            Bytes of blocks kept in memory (pinned where CUDA is present), the ones used last; 0: none, every request
            reads its blocks from the bank's files.
        remote : str, optional
            URL of a remote tier that fsspec knows, such as ``s3://bucket/folder`` (extra ``s3``): blocks are uploaded
            in the background, and those that are not in the bank's files are looked for there before they are compiled.
            Credentials come from where its driver looks for them, such as ``AWS_...`` variables; it may be down.

        Raises
        ------
        InputError
            Its subclasses say what: an unknown model, an unsupported architecture, a setting out of range, or a bank
            that was made with something else.
        """
        check_arguments(model, bank, embedder=embedder, system_prompt=system_prompt, dtype=dtype, revision=revision)
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigError(f"batch_size must be a whole number from 1, not {batch_size!r}.")
        request = RequestConfig(top_k, max_context_tokens, overflow, on_miss, max_waiting)
        routing = RouteConfig(alpha, budget, token_budget, router)
        known = Bank.recipe_at(bank)
        renderer = Renderer(profile_of(profile, known, model), strict=strict)
        resolutions = check_dpis(dpis or (known.dpis if known else _DEFAULT_DPIS))
        forms = check_storage(storage if storage is not None else known.storage if known else "native")
        target = resolve_device(device)
        options = {
            "device": str(target),
            "dtype": dtype or (known.dtype if known else default_dtype(target)),
            "trust_remote_code": trust_remote_code,
        }
        wanted = revision or (known.revision if known and known.model == model else None) or None
        loaded = MODELS.get(load_model, model, **options, revision=wanted)
        if wanted is None and loaded.checkpoint.revision:  # from now on the bank asks for the commit that it was
            MODELS.put(loaded, load_model, model, **options, revision=loaded.checkpoint.revision)
        prompt = system_prompt if system_prompt is not None or known is None else known.system_prompt
        template = ChatTemplate(loaded, system_prompt=prompt)
        vectors = EMBEDDERS.get(
            load_embedder,
            embedder or (known.embedder if known else ("demo" if model in BUNDLED else "BAAI/bge-m3")),
            device=str(loaded.device),
        )
        if router == "hybrid":
            vectors.signals([])  # refuses an embedder that cannot, before a bank is made with it
        recipe = make_recipe(loaded, template, renderer, vectors, resolutions, forms)
        # A bank that may only be read is opened, not created.
        if known is None:
            store = Bank.create(bank, recipe, namespace, ram_bytes=ram_bytes, remote=remote)
        else:
            store = Bank.open(bank, namespace, ram_bytes=ram_bytes, remote=remote)
        try:
            store.check(recipe)
            engine = Engine(loaded, template, renderer, vectors, store, batch_size)
        except BaseException:
            store.close()
            raise
        return cls(engine, request, routing)

    @classmethod
    def open(cls, bank: str | os.PathLike[str], *, model: str | None = None, **options: Any) -> QVPIC:
        """Open an existing bank with the model, profile and embedder that it was made with.

        ``model`` gives the model's new place where it has moved; it must be the same model. ``options`` are those of
        :meth:`from_pretrained`.

        Raises
        ------
        BankNotFoundError
            No bank at this path.
        """
        with Bank.open(bank, namespace=options.get("namespace", "default")) as store:
            name = model or store.recipe.model
        return cls.from_pretrained(name, bank, **options)

    # ------------------------------------------------------------------ documents

    def ingest(
        self,
        documents: str | os.PathLike[str] | Document | Iterable[str | os.PathLike[str] | Document],
        *,
        progress: bool | Progress = True,
        stdin: IO[bytes] | IO[str] | None = None,
    ) -> IngestReport:
        """Read, render, compile and store documents.

        Parameters
        ----------
        documents
            Files, folders or globs (txt, md, html, csv, json, PDF), ``-`` for ``stdin``, or ``Document`` records.
        progress : bool or callable
            A progress bar on stderr where that is a terminal; a callable is called with pages done, pages in all and
            the current source.
        stdin : binary or text stream, optional
            What ``-`` reads.

        Returns
        -------
        IngestReport
            What was added, replaced, left unchanged, and what failed and why. Failures do not stop the others.
        """
        if isinstance(documents, str | os.PathLike | Document):
            items = [documents]
        elif isinstance(documents, Iterable):
            items = list(documents)
        else:
            raise InputError(f"Give paths or Document records to ingest, not {type(documents).__name__}.")
        if callable(progress):
            report = ingest(self._engine, documents_of(items, stdin), progress, router=self._route.router)
        else:
            with bar("Compiling", "pages", enabled=progress) as update:
                report = ingest(self._engine, documents_of(items, stdin), update, router=self._route.router)
        for failure in report.failed:  # a caller who does not look at the report should still hear of it
            _log.warning("not ingested: %s", failure.error)
        return report

    def remove(self, source: str | os.PathLike[str]) -> bool:
        """Remove a document by its source; False where there is none of that name.

        Its pages are no longer found; their blocks are freed by :meth:`Bank.gc`.
        """
        return self._engine.bank.remove_document(os.fspath(source))

    # ------------------------------------------------------------------ questions

    def ask(
        self,
        question: str,
        *,
        top_k: int | None = None,
        system: str | None = None,
        history: Sequence[Message] = (),
        query: str | None = None,
        context: Sequence[Document | Page] | None = None,
        **generation: Any,
    ) -> Answer:
        """Answer a question from the documents.

        Parameters
        ----------
        question : str
            Also what pages are retrieved and routed by.
        top_k : int, optional
            Pages retrieved, in place of the engine's setting.
        system : str, optional
            Instructions for this request; they stand after the pages and recompile nothing.
        history : Sequence[Message]
            Earlier turns, oldest first, beginning with the user's.
        query : str, optional
            What pages are retrieved and routed by, where ``question`` is more than the user's own words, such as a
            filled prompt template.
        context : Sequence[Document | Page], optional
            Texts or pages to answer from, in this order, in place of the nearest pages: those that another retriever
            found. They need not have been ingested; pages that are not in the bank are compiled now.
        **generation
            Fields of :class:`~qvpic_rag.config.GenerateConfig`, such as ``max_new_tokens`` or ``stop``.
        """
        return answer(self._engine, self._question(question, top_k, system, history, query, context, generation))

    def stream(
        self,
        question: str,
        *,
        top_k: int | None = None,
        system: str | None = None,
        history: Sequence[Message] = (),
        query: str | None = None,
        context: Sequence[Document | Page] | None = None,
        **generation: Any,
    ) -> AnswerStream:
        """As :meth:`ask`, but an iterator over pieces of text; its ``answer`` holds the record when it is exhausted.

        Read it with ``for``, or with ``async for``, which does not block the event loop.
        """
        asked = self._question(question, top_k, system, history, query, context, generation)
        return AnswerStream(
            lambda on_piece, cancelled: answer(self._engine, asked, on_piece=on_piece, cancelled=cancelled)
        )

    async def aask(self, question: str, **options: Any) -> Answer:
        """As :meth:`ask` without blocking the event loop; cancelling the task ends generation at the next token."""
        async with self.stream(question, **options) as stream:
            async for _ in stream:
                pass
        return stream.answer

    def _question(
        self,
        question: str,
        top_k: int | None,
        system: str | None,
        history: Sequence[Message],
        query: str | None,
        context: Sequence[Document | Page] | None,
        generation: dict[str, Any],
    ) -> Question:
        try:
            settings = GenerateConfig(**generation)
        except TypeError as error:
            known = ", ".join(GenerateConfig.__dataclass_fields__)
            raise ConfigError(
                f"Unknown option for a question ({error}); the options are top_k, system, history, query, context, "
                f"{known}, and others are given where the engine is made."
            ) from error
        request = self._request
        if top_k is not None:
            request = replace(request, top_k=top_k)
        for name, text in (("question", question), ("system", system), ("query", query)):
            if not isinstance(text, str) and (text is not None or name == "question"):
                raise InputError(f"{name} must be a string, not {type(text).__name__}.")
        if context is not None and not all(isinstance(each, Document | Page) for each in context):
            raise InputError("context must hold Document or Page records, such as Document('The text.', 'its name').")
        return Question(
            question if query is None else query,
            conversation(question, system, history),
            request,
            self._route,
            settings,
            None if context is None else tuple(context),
        )

    def read(self, messages: Sequence[Message], context: Sequence[Document | Page] = ()) -> Asked:
        """Take a conversation that another program put together apart: ``ask(**vars(read(messages)))`` answers it.

        Parameters
        ----------
        messages : Sequence[Message]
            Oldest first, system turns among them; filled prompt templates are fine. The last one asks.
        context : Sequence[Document | Page]
            What is known to be retrieved. Where nothing is, stored pages whose texts stand in the messages are the
            context; where something is, nobody's document can stand for a part of the prompt that equals its text.

        Raises
        ------
        InputError
            The last message is not the user's.
        """
        return asked(messages, context, lambda text: self._engine.known_texts().find(text))

    # ------------------------------------------------------------------ what it is made of

    @property
    def bank(self) -> Bank:
        """The store, for statistics, verification and garbage collection."""
        return self._engine.bank

    @property
    def engine(self) -> Engine:
        """The wired parts, for baselines and evaluation."""
        return self._engine

    def page(self, page_id: str) -> Page:
        """A stored page by the id that an answer's route gives.

        Raises
        ------
        InputError
            The bank holds no such page (any more).
        """
        page = self._engine.bank.find_page(page_id)
        if page is None:
            raise InputError(f"The bank holds no page {page_id!r}; use a page_id of an answer's route.")
        return page

    def page_image(self, page: Page, dpi: int) -> Image.Image:
        """The picture of a page as the model saw it, RGB."""
        return self._engine.renderer.image(page, dpi)

    def close(self) -> None:
        """Close the bank."""
        self._engine.bank.close()

    def __enter__(self) -> QVPIC:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()
