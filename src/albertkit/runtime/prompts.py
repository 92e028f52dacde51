"""The text that is put before each input of a model of vectors.

In: the `prompt` of a call, and the prompts of a model. Out: a text. `embed.py` uses it.
"""

from __future__ import annotations

from collections.abc import Mapping

from albertkit.errors import AlbertkitError


def prompt_text(prompt: str | None, prompts: Mapping[str, str]) -> str:
    """The text of a prompt: the default one, the one of a name, or the text itself. A word is a name."""
    if prompt is not None and not isinstance(prompt, str):
        raise AlbertkitError(f"prompt={prompt!r} is not a string. Pass a text, or the name of a prompt.")
    if prompt is None or prompt in prompts:
        return prompts.get(prompt or "default", "")
    if prompt.isidentifier():
        available = f"has only {', '.join(map(repr, prompts))}" if prompts else "has no prompts"
        raise AlbertkitError(
            f"prompt={prompt!r} is not the name of a prompt: this model {available}. "
            f"Omit it, or pass the text before each input, such as {prompt + ': '!r}."
        )
    return prompt
