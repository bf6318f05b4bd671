"""A language model like SmolLM2, but tiny and random, built without the package that carries the real one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from qvpic_rag.models.smolglyph.base import Base
from qvpic_rag.models.smolglyph.model import Tower, build_tokenizer
from qvpic_rag.reader.smolglyph.requests import Prompts

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>",
    "<gh_stars>", "<issue_start>", "<issue_comment>", "<issue_closed>", "<jupyter_start>", "<jupyter_text>",
    "<jupyter_code>", "<jupyter_output>", "<jupyter_script>", "<empty_output>",
)  # fmt: skip
TOWER = Tower(hidden=48, depth=2, heads=2, mlp=64)


def _tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of a few hundred tokens, laid out like SmolLM2's."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(Path(torch.__file__).parent.glob("utils/*.py"))[:12]]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", unk_token="<|endoftext|>"
    )


@pytest.fixture(scope="session")
def tiny_base() -> Base:
    """Two layers of two heads with one key head; its weights let answers depend on positions."""
    tokenizer = _tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.normal_(0, parameter.shape[1] ** -0.5)
                else:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
    weights = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    return Base(config, weights, tokenizer, "0" * 64)


@pytest.fixture(scope="session")
def prompts(tiny_base: Base) -> Prompts:
    return Prompts(build_tokenizer(tiny_base))
