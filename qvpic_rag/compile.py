"""Page pictures to position-independent KV blocks: ``C = Strip_h(KV_M([h ; x]))``, keys before rotary embedding.

Each page is run alone under the template prefix h. Keys are taken by hooks at the last module before the model rotates
them, so nothing has to be un-rotated; the prefix's own entries are cut off.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from PIL import Image
from torch import Tensor, nn

from qvpic_rag.errors import CompileError
from qvpic_rag.models import LanguageModel, VisionInputs, VisionLanguageModel
from qvpic_rag.records import BlockKey, KVBlock
from qvpic_rag.template import ChatTemplate

__all__ = ["compile_pages", "compile_text", "page_tokens"]

_log = logging.getLogger(__name__)


def compile_pages(
    model: VisionLanguageModel,
    template: ChatTemplate,
    images: Sequence[Image.Image],
    keys: Sequence[BlockKey],
    *,
    prefix: Sequence[int] | None = None,
) -> list[KVBlock]:
    """Compile pictures of equal size in one forward pass.

    Parameters
    ----------
    model, template
        The model and its prompt parts.
    images : Sequence[Image.Image]
        RGB, all of one size.
    keys : Sequence[BlockKey]
        One per picture, put into the blocks as they are.
    prefix : Sequence[int], optional
        Token ids that condition the pages in place of the template's own prefix; none at all for prefix-free.

    Returns
    -------
    list[KVBlock]
        On the CPU, in the order of ``images``.

    Raises
    ------
    CompileError
        The image processor refuses the pictures, they differ in visual tokens, or a block contains NaN or infinity.
    """
    if not images:
        return []
    vision = _vision(model, images)
    if len(set(vision.tokens)) != 1:
        raise CompileError(f"Pages compiled together must have equally many visual tokens, not {vision.tokens}.")
    condition = template.prefix if prefix is None else prefix
    row = [*condition, *template.page(vision.tokens[0])]
    token_ids = torch.tensor([row] * len(images), device=model.device)
    return _blocks(model, token_ids, vision, keys, skip=len(condition))


def page_tokens(model: VisionLanguageModel, template: ChatTemplate, image: Image.Image) -> int:
    """How many tokens the block of a picture has, without compiling it; ``CompileError`` when it is refused."""
    return len(template.page(_vision(model, [image]).tokens[0]))


def _vision(model: VisionLanguageModel, images: Sequence[Image.Image]) -> VisionInputs:
    try:
        return model.encode_images(images, together=False)
    except ValueError as error:
        width, height = images[0].size
        raise CompileError(
            f"The model's image processor refuses a page of {width} x {height} pixels ({error}); raise the resolution "
            "or the profile's page size."
        ) from error


def compile_text(model: LanguageModel, token_ids: Sequence[int], key: BlockKey, *, prefix: int) -> KVBlock:
    """Compile text tokens: the prefix h itself (``prefix=0``), or what follows its first ``prefix`` tokens.

    Raises ``CompileError`` as :func:`compile_pages` does.
    """
    ids = torch.tensor([list(token_ids)], device=model.device)
    return _blocks(model, ids, None, [key], skip=prefix)[0]


def _blocks(
    model: LanguageModel, token_ids: Tensor, vision: VisionInputs | None, keys: Sequence[BlockKey], *, skip: int
) -> list[KVBlock]:
    # One token more than is run: its position is where whatever follows the block starts.
    positions = model.positions(torch.nn.functional.pad(token_ids, (0, 1)), vision)
    run = positions[..., :-1].contiguous()
    with model.lock, torch.no_grad(), _taps(model) as (unrotated, values):
        model.base_model(
            input_ids=token_ids,
            position_ids=model.position_argument(run),
            use_cache=False,
            **(vision.tensors if vision is not None else {}),
        )
    batch, tokens = token_ids.shape
    shape = (batch, tokens, model.kv_heads, model.head_dim)
    all_keys = torch.stack([k.view(shape) for k in unrotated])[:, :, skip:].transpose(2, 3)
    all_values = torch.stack([v.view(shape) for v in values])[:, :, skip:].transpose(2, 3)
    if not bool(torch.isfinite(all_keys).all() and torch.isfinite(all_values).all()):
        raise CompileError(
            f"The model's keys or values are not finite in {model.dtype}; compile with dtype='bfloat16' or 'float32'."
        )
    local = (positions - skip).cpu()
    return [
        KVBlock(
            keys=all_keys[:, row].cpu().contiguous(),
            values=all_values[:, row].cpu().contiguous(),
            token_ids=token_ids[row, skip:].cpu(),
            positions=local[:, row, skip:-1].contiguous(),
            span=int(local[0, row, -1]),
            key=key,
        )
        for row, key in enumerate(keys)
    ]


@contextmanager
def _taps(model: LanguageModel) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Collect each layer's unrotated keys and values, ``[batch, tokens, kv_heads * head_dim]``, in layer order."""
    keys: list[Tensor] = []
    values: list[Tensor] = []

    def tap(module: nn.Module, store: list[Tensor]) -> torch.utils.hooks.RemovableHandle:
        return module.register_forward_hook(lambda _module, _inputs, output: store.append(output))

    handles = []
    try:
        for layer in range(model.layers):
            attention = model.attention(layer)
            handles.append(tap(model.key_module(attention), keys))
            handles.append(tap(model.value_module(attention), values))
        yield keys, values
    finally:
        for handle in handles:
            handle.remove()
