"""HTML, CSV and JSON as readable text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qvpic_rag.documents import read_documents
from qvpic_rag.records import Document
from tests.documents.reading import failure, read, write


def test_html_becomes_its_readable_text() -> None:
    write(
        "t.html",
        """<!DOCTYPE html><html><head><title>The  Title</title><style>p {}</style><script>if (a<b) "</p>"</script>
        </head>
        <body><h1>Head&nbsp;&amp; shoulders</h1><!-- no --><p>One <b>bold</b>
        word,<br>new line.</p><ul><li>first</li><li><p>second</p></li><li></li></ul><noscript>Enable it</noscript>
        <table><tr><th>Name</th><th>Code</th></tr><tr><td>Marta</td><td>K&#45;204</td></tr></table>
        <pre>a  b
  c</pre><div>x<div>y</div>z</div><template><p>no</p></template>tail""",
    )
    assert read("t.html").split("\n") == [
        "The Title",
        "Head & shoulders",
        "One bold word,",
        "new line.",
        "- first",
        "- second",
        "Name | Code",
        "Marta | K-204",
        "a  b",
        "  c",
        "x",
        "y",
        "z",
        "tail",
    ]


def test_html_without_text_is_empty() -> None:
    write("t.htm", "<html><script>x</script></html>")
    assert failure("t.htm") == "'t.htm' is empty; give a file that holds text."


MARKUP = [
    "<",
    "<!",
    "<![",
    "<!--",
    "-->",
    "<?",
    "</",
    "pre",
    "li",
    "td",
    "script",
    ">",
    "/>",
    "&",
    "&#xD800;",
    "[",
    "'",
    " ",
]


@given(st.lists(st.sampled_from(MARKUP)).map("".join))
@example("<![/>")
def test_broken_html_gives_text_or_one_sentence(text: str) -> None:
    write("t.html", text)
    (item,) = read_documents(["t.html"])
    assert isinstance(item, Document) or "HTML" in str(item.error) or "empty" in str(item.error)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("name,code\nMarta,K-204\nOla,\n", "name: Marta\ncode: K-204\n\nname: Ola"),
        ("name;price\nTea;1,50\nMilk;2,25\n", "name: Tea\nprice: 1,50\n\nname: Milk\nprice: 2,25"),
        ("name\tcode\nA, B\tC\n", "name: A, B\ncode: C"),
        ("a|b\n1|2\n", "a: 1\nb: 2"),
        ('a,b\n"x, ""y""\nz",2\n', 'a: x, "y" z\nb: 2'),
        ("a,b\n1,2,3\n\n4\n", "a: 1\nb: 2\ncolumn 3: 3\n\na: 4"),
        ("1,2\n3,4\n", "column 1: 1\ncolumn 2: 2\n\ncolumn 1: 3\ncolumn 2: 4"),
        ("x,x\n1,2\n", "column 1: x\ncolumn 2: x\n\ncolumn 1: 1\ncolumn 2: 2"),
        ("only,row\n", "column 1: only\ncolumn 2: row"),
        ("word\nfirst\nsecond\n", "word: first\n\nword: second"),
        ("a,note\n1,x; y; z\n2,u; v; w\n", "a: 1\nnote: x; y; z\n\na: 2\nnote: u; v; w"),
        ("a,b\nu\u2028v,2\n", "a: u v\nb: 2"),
    ],
)
def test_csv_rows_become_lines(content: str, expected: str) -> None:
    write("t.csv", content)
    assert read("t.csv") == expected


def test_csv_with_an_endless_quotation_is_one_sentence() -> None:
    write("t.csv", 'a,b\n"' + "x" * 200_000)
    assert "check its quotation marks" in failure("t.csv")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "t.json",
            {"a": {"b": [1, {"c": "text\nmore"}]}, "n": None, "t": True},
            "a.b[0]: 1\na.b[1].c: text\nmore\nn: null\nt: true",
        ),
        ("t.json", [{"name": "Marta", "code": 7}, {"name": "Ola"}], "name: Marta\ncode: 7\n\nname: Ola"),
        ("t.json", [1, {"a": 2}], "[0]: 1\n[1].a: 2"),
        ("t.json", {"e": [], "o": {}}, "e: []\no: {}"),
        ("t.json", "just text", "just text"),
        ("t.json", b'{"price": 1.10, "big": 1e400, "x": NaN}', "price: 1.10\nbig: 1e400\nx: NaN"),
        ("t.json", b'["' + b"9" * 5000 + b'", ' + b"9" * 5000 + b"]", "[0]: " + "9" * 5000 + "\n[1]: " + "9" * 5000),
        ("t.json", b'{"broken": "\\ud800x", "pair": "\\ud83d\\ude00"}', "broken: \ufffdx\npair: \U0001f600"),
        ("t.jsonl", b'{"a": 1}\n\n{"a": "z"}\r\n', "a: 1\n\na: z"),
        ("t.ndjson", b'["x"]\n3\n', "[0]: x\n\n3"),
    ],
)
def test_json_becomes_paths_and_values(name: str, content: Any, expected: str) -> None:
    write(name, content if isinstance(content, bytes) else json.dumps(content))
    assert read(name) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "t.json",
            "{",
            "'t.json' is not valid JSON (Expecting property name enclosed in double quotes at line 1, column 2).",
        ),
        ("t.jsonl", '{"a": 1}\n{"a" 1}', "'t.jsonl' is not valid JSON (Expecting ':' delimiter at line 2, column 6)."),
        ("t.json", "[" * 100_000 + "]" * 100_000, "'t.json' is nested too deeply; flatten it or split it into files."),
        ("t.json", " ", "'t.json' is empty; give a file that holds text."),
        ("t.jsonl", "\n", "'t.jsonl' is empty; give a file that holds text."),
    ],
)
def test_bad_json_is_one_sentence(name: str, content: str, message: str) -> None:
    write(name, content)
    assert failure(name) == message
