"""Where each cell of a state lies in the 64-bit words that the compiled search stores.

A cell takes as many bits as its sort needs in the scope and lies in one word.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod

from .layout import Layout

WORD_BITS = 64


@dataclass(frozen=True)
class Field:
    """The place of a cell: its word, the shift within it, the mask of its values."""

    word: int
    shift: int
    mask: int


class BitLayout:
    """Fields of a layout's cells, first fit in order; packs states of bytes and unpacks them."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.fields: list[Field] = []
        self.limits: list[int] = []
        used: list[int] = []
        for variable in layout.machine.state:
            limit = layout.limit[variable.name]
            width = max(limit - 1, variable.initial).bit_length()
            for _ in range(prod(layout.shape[variable.name])):
                room = (w for w, bits in enumerate(used) if bits + width <= WORD_BITS)
                word = next(room, len(used))
                if word == len(used):
                    used.append(0)
                self.fields.append(Field(word, used[word], (1 << width) - 1))
                self.limits.append(limit)
                used[word] += width
        self.words = len(used)
        self.bits = sum(used)

    def order(self, state: bytes) -> tuple[int, ...]:
        """The words of a state of one byte a cell: by them states are ordered."""
        words = [0] * self.words
        for field, value in zip(self.fields, state):
            words[field.word] |= value << field.shift
        return tuple(words)

    def pack(self, state: bytes) -> bytes:
        """The words, in the machine's byte order, of a state of one byte a cell."""
        return b"".join(w.to_bytes(WORD_BITS // 8, sys.byteorder) for w in self.order(state))

    def unpack(self, words: bytes) -> bytes:
        """The state of one byte a cell."""
        size = WORD_BITS // 8
        numbers = [int.from_bytes(words[i * size:(i + 1) * size], sys.byteorder)
                   for i in range(self.words)]
        return bytes(numbers[f.word] >> f.shift & f.mask for f in self.fields)
