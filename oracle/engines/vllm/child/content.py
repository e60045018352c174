"""Which bytes should be where?  Tags instead of bytes, one per token position.

A tag names the token prefix that a position's KV depends on: two requests with the same
first ``p + 1`` tokens have the same tag at ``p``, any others do not.  Every group has its
own tags, since its layers hold other bytes.

A draft group's KV at ``p`` also depends on token ``p + 1``, which an EAGLE or MTP drafter
reads shifted by one: its tags are pairs (prefix through ``p``, prefix through ``p + 1``).

Tokens are known in advance (``docs/protocol.md``, Tokens), so tags can be made for any
position, sampled or not.
"""

from __future__ import annotations

from binascii import crc32
from typing import Any, Union

Tag = Union[int, tuple[int, int], None]
Cell = tuple[Tag, ...]
"""What one block of one group holds, position by position; shorter if its end is unwritten."""

FIRST_TOKEN = 3
TOKENS = 491
WRONG_TOKEN = FIRST_TOKEN + TOKENS + 1
"""A token no stream and no request ever has: what a drafter proposes to be rejected."""


def stream_token(stream: int, position: int) -> int:
    return FIRST_TOKEN + (stream * 7919 + position * 104729) % TOKENS


class Text:
    """All tokens of one request, the sampled ones included, and their tags in each group."""

    def __init__(self, name: str, prompt: list[int], drafts: tuple[bool, ...],
                 salt: str = "") -> None:
        self.name = name
        self.prompt = prompt
        self.drafts = drafts
        self._salt = crc32(salt.encode()) if salt else 0
        self._seed = crc32(name.encode()) * 31
        self._prefixes: list[list[int]] = [[] for _ in drafts]
        self._pairs: list[list[Tag]] = [[] for _ in drafts]
        self._whole: list[dict[tuple[int, int], Cell]] = [{} for _ in drafts]

    def token(self, position: int) -> int:
        if position < len(self.prompt):
            return self.prompt[position]
        return FIRST_TOKEN + (self._seed + position * 7) % TOKENS

    def _prefix(self, group: int, upto: int) -> list[int]:
        prefixes = self._prefixes[group]
        # With another salt or adapter, the same tokens are other content.
        last = prefixes[-1] if prefixes else group + self._salt * 1000
        for position in range(len(prefixes), upto):
            last = hash((last, self.token(position)))
            prefixes.append(last)
        return prefixes

    def tags(self, group: int, start: int, end: int) -> Cell:
        """The tags positions ``start`` to ``end`` should hold."""
        if not self.drafts[group]:
            return tuple(self._prefix(group, end)[start:end])
        prefixes = self._prefix(group, end + 1)
        pairs = self._pairs[group]
        for position in range(len(pairs), end):
            pairs.append((prefixes[position], prefixes[position + 1]))
        return tuple(pairs[start:end])

    def block(self, group: int, index: int, size: int) -> Cell:
        """The tags of a whole block; always the same object, so a match is seen at once."""
        whole = self._whole[group]
        cell = whole.get((index, size))
        if cell is None:
            cell = whole[index, size] = self.tags(group, index * size, (index + 1) * size)
        return cell

    def speculative(self, group: int, known: int, tokens: list[int]) -> Cell:
        """Tags of the positions after ``known`` if ``tokens`` stood there."""
        last = self._prefix(group, known)[known - 1]
        made = []
        for token in tokens:
            last = hash((last, token))
            made.append(last)
        return tuple(made)

    def forget(self) -> None:
        """Drop all tags; they are made again when asked for.  Keeps long runs small."""
        for prefixes, pairs, whole in zip(self._prefixes, self._pairs, self._whole):
            prefixes.clear()
            pairs.clear()
            whole.clear()

    def find(self, tag: Tag) -> int | None:
        """Position at which this request's own text has ``tag``, in whichever group."""
        for prefixes, pairs in zip(self._prefixes, self._pairs):
            if isinstance(tag, tuple):
                if tag in pairs:
                    return pairs.index(tag)
                tag_of = tag[0]
            else:
                tag_of = tag if tag is not None else -1
            if tag_of in prefixes:
                return prefixes.index(tag_of)
        return None


def agrees_but_for_next(want: Tag, got: Tag) -> bool:
    """Whether a draft group's position holds its own prefix, and only token ``p + 1`` differs.

    Such bytes lower the drafter's acceptance; the target's output does not depend on them.
    """
    return isinstance(want, tuple) and isinstance(got, tuple) and want[0] == got[0]


def parse_prompt(segments: Any, texts: dict[str, Text]) -> list[int]:
    """Tokens of a prompt given as ``[stream or request, length]`` segments.

    Raises KeyError with the name of a request nobody knows.
    """
    tokens: list[int] = []
    for source, length in segments:
        if isinstance(source, int):
            tokens.extend(stream_token(source, position) for position in range(length))
        else:
            text = texts[source]
            tokens.extend(text.token(position) for position in range(length))
    return tokens
