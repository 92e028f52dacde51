"""Writes the table of traditional characters that keyword search reads as simplified ones.

    python studies/simplified.py        writes src/albertkit/search/simplified.txt

Each line has a simplified character, then the characters that are read as it. Texts and queries are both folded, so two
characters that share a line never miss each other. Only single characters of the basic plane are used; those that the
tokenizer of `small-zh` folds are among them. Needs `opencc-python-reimplemented` 0.1.7, whose lists of characters are the
source (OpenCC, Apache-2.0).
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "studies" / "small-zh")]

from tokenizer import simplified  # noqa: E402

TABLE = ROOT / "src" / "albertkit" / "search" / "simplified.txt"
MORE = {"砲": "炮", "粧": "妆", "舖": "铺", "遶": "绕", "餽": "馈", "痲": "麻"}  # variants that the lists do not have


def read_list(name: str) -> dict[str, list[str]]:
    """A list of OpenCC: characters and what replaces each, the most frequent first."""
    import opencc

    lines = (Path(opencc.__file__).parent / "dictionary" / f"{name}.txt").read_text("utf-8-sig").splitlines()
    pairs = (line.split("\t") for line in lines if "\t" in line)
    replacements = {old: list(filter(is_plain, new.split())) for old, new in pairs}
    return {old: new for old, new in replacements.items() if is_plain(old) and new}


def is_plain(text: str) -> bool:
    """Whether this is one character of the basic plane."""
    return len(text) == 1 and ord(text) < 0x10000


def fold_table() -> dict[str, str]:
    """Each traditional or rare character, and the simplified one that stands for it."""
    forms = {old: [c for c in new if c != old] for old, new in read_list("TSCharacters").items()}
    table = {old: new[0] for old, new in forms.items() if new} | simplified() | MORE
    common = set(table.values())

    def root(c: str) -> str:
        while c in table:
            c = table[c]
        return c

    def merge(*characters: str) -> None:
        """Fold what stands for one to what stands for the other: to the one in GB 2312, then to the commoner one."""
        kept, *others = sorted({root(c): 0 for c in characters}, key=lambda c: (not is_gb2312(c), c not in common))
        table.update((c, kept) for c in others)

    for new, olds in read_list("STCharacters").items():
        merge(new, olds[0])  # 锺 is 鍾, which is 钟
        for old in (c for c in olds if root(c) == c):
            merge(new, old)  # 伕 is 夫
    for name in ("TWVariants", "HKVariants"):
        for standard, variants in read_list(name).items():
            merge(standard, variants[0])
    return {old: root(old) for old in table}


def is_gb2312(c: str) -> bool:
    """Whether a character is in GB 2312, which has the everyday simplified ones."""
    try:
        return bool(c.encode("gb2312"))
    except UnicodeEncodeError:
        return False


def main() -> None:
    """Write the table."""
    groups: dict[str, list[str]] = {}
    for old, new in sorted(fold_table().items()):
        groups.setdefault(new, []).append(old)
    lines = [f"{new}{''.join(olds)}\n" for new, olds in sorted(groups.items())]
    TABLE.write_text("".join(lines), encoding="utf-8")
    print(f"{TABLE.relative_to(ROOT)}: {sum(map(len, groups.values())):,} characters, {TABLE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
