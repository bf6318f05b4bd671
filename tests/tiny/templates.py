"""Chat templates with the behaviour of the published ones, in our own words, and variants that set traps."""

from __future__ import annotations

__all__ = ["TEMPLATE_VARIANTS", "chat_template"]

TEMPLATE_VARIANTS = ("default", "newline", "thinking", "system", "no_system", "numbered", "text_only")
"""``newline``: a line break after every picture. ``thinking``: the generation prompt opens a ``<think>`` tag.
``system``/``no_system``: with or without a default system prompt, whatever the family does. ``numbered``: pictures
are counted, so a page's tokens depend on its place (must be refused). ``text_only``: pictures raise."""

_DEFAULT_SYSTEM = "You are a helpful assistant."

# Content is a string or a list of parts; shared by the ChatML and GLM layouts.
_PARTS = """\
{%- set counter = namespace(pictures=0) -%}
{%- macro parts(content) -%}
{%- if content is string -%}{{ content }}
{%- else -%}
{%- for part in content -%}
{%- if part.type == 'image' or 'image' in part -%}
%(guard)s{%- set counter.pictures = counter.pictures + 1 -%}%(before)s%(picture)s%(after)s
{%- elif part.type == 'text' or 'text' in part -%}{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
"""

_GLM = """\
{{- '[gMASK]<sop>' -}}
{%- if messages[0].role != 'system' and default_system -%}{{ '<|system|>\\n' + default_system }}{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{ '<|system|>\\n' }}%(plain)s
{%- elif message.role == 'user' -%}{{ '<|user|>\\n' }}{{ parts(message.content) }}%(nothink)s
{%- elif message.role == 'assistant' -%}{{ '<|assistant|>\\n' }}%(plain)s
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}%(opening)s{%- endif -%}
"""

_CHATML = """\
{%- if messages[0].role != 'system' and default_system -%}
{{ '<|im_start|>system\\n' + default_system + '<|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' }}{{ parts(message.content) }}{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}%(opening)s{%- endif -%}
"""

# LLaVA-OneVision: a space after the role, all pictures first, each text on a new line, no break between turns; content
# must be a list of parts (a plain string renders as nothing, as with the published template).
_LLAVA = """\
{%- set counter = namespace(pictures=0) -%}
{%- if messages[0].role != 'system' and default_system -%}
{{ '<|im_start|>system \\n' + default_system + '<|im_end|>' }}
{%- endif -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + ' ' }}
{%- for part in message.content | selectattr('type', 'equalto', 'image') -%}
%(guard)s{%- set counter.pictures = counter.pictures + 1 -%}%(before)s%(picture)s%(after)s
{%- endfor -%}
{%- for part in message.content | selectattr('type', 'equalto', 'text') -%}{{ '\\n' + part.text }}{%- endfor -%}
{{ '<|im_end|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}%(opening)s{%- endif -%}
"""

_PICTURES = {
    "glm": "<|begin_of_image|><|image|><|end_of_image|>",
    "qwen": "<|vision_start|><|image_pad|><|vision_end|>",
    "llava": "<image>",
}
_TEXT = ("llama", "mistral", "qwen2", "qwen3")
_KINDS = {
    "glm4v": "glm",
    "glm46v": "glm",
    "qwen2_vl": "qwen",
    "qwen2_5_vl": "qwen",
    "qwen3_vl": "qwen",
    "llava_onevision": "llava",
    "llava_onevision2": "qwen",
    **dict.fromkeys(_TEXT, "qwen"),
}
_WITH_SYSTEM = {"qwen2_vl", "qwen2_5_vl", "llava_onevision2", *_TEXT}


def chat_template(family: str, variant: str = "default") -> str:
    """Jinja text of ``family``'s template in one of ``TEMPLATE_VARIANTS``."""
    if variant not in TEMPLATE_VARIANTS:
        raise ValueError(f"template must be one of {TEMPLATE_VARIANTS}, not {variant!r}")
    kind = _KINDS[family]
    pieces = {
        "picture": "{{ '" + _PICTURES[kind] + "' }}",
        "guard": "{{ raise_exception('This model reads text only.') }}" if variant == "text_only" else "",
        "before": "{{ 'Picture ' ~ counter.pictures ~ ': ' }}" if variant == "numbered" else "",
        "after": "{{ '\\n' }}" if variant == "newline" else "",
        "opening": "{{ '<think>\\n' }}" if variant == "thinking" else "",
        "nothink": "",
        # GLM-4.1V writes system and assistant content out as it is, a list of parts as Python's text of a list.
        "plain": "{{ message.content }}" if family == "glm4v" else "{{ parts(message.content) }}",
    }
    if family == "glm46v":
        off = "enable_thinking is defined and not enable_thinking"
        pieces["nothink"] = "{%- if " + off + " -%}{{ '/nothink' }}{%- endif -%}"
        pieces["opening"] = pieces["opening"] or "{%- if " + off + " -%}{{ '<think></think>\\n' }}{%- endif -%}"
    with_system = variant == "system" or (family in _WITH_SYSTEM and variant != "no_system")
    text = "{%- set default_system = '" + (_DEFAULT_SYSTEM if with_system else "") + "' -%}\n"
    body = {"glm": _PARTS + _GLM, "qwen": _PARTS + _CHATML, "llava": _LLAVA}[kind]
    for name, piece in pieces.items():
        body = body.replace(f"%({name})s", piece)
    return text + body
