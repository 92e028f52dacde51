"""Text for a terminal or a log: control characters become visible escapes such as `\\x1b`.

In: any text. Out: text that moves no cursor, changes no colour and reorders no line. `cli/console.py` applies it to all
that commands print, `serve/server.py` to the log.
"""

from __future__ import annotations

import re

# C0, DEL, C1; line and paragraph separators; embeddings, overrides and isolates of bidirectional text; lone surrogates.
_control = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_controls(text: str, keep: str = "\n\t") -> str:
    r"""The text with control characters as Python writes them in a string, except those to keep.

    >>> print(escape_controls("red: \x1b[31m"))
    red: \x1b[31m
    """
    return _control.sub(lambda found: found[0] if found[0] in keep else repr(found[0])[1:-1], text)


def escape_json(text: str) -> str:
    r"""The same JSON value with control characters as JSON escapes. Line breaks between its parts stay.

    >>> print(escape_json('"\u202e"'))
    "\u202e"
    """
    return _control.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)
