"""A whole HTML page that can neither load nor run anything, for what commands write about pages and answers."""

from __future__ import annotations

import html

__all__ = ["html_page"]


def html_page(title: str, body: str, *, style: str) -> str:
    """A page with ``title`` (plain text) as its heading, then ``body`` (HTML), under a ``style`` sheet.

    Its content security policy allows pictures inside the page and its own styles, and nothing else.
    """
    heading = html.escape(title)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{heading}</title>
<style>{style}</style>
</head>
<body>
<h1 dir="auto">{heading}</h1>
{body}
</body>
</html>
"""
