"""Which blocks hold the keys and values of which beginnings, by chained hashes.

The hash of a block covers the hash of the block before it, its own tokens, and, through the chain's root, everything
else that its content depends on. Hashes are keyed with a secret of the process, so nobody can prepare two texts that
share one.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inferir.ir.contract.kv_specs import NULL_BLOCK

TokenSlice = Callable[[int, int], Sequence[int]]
"""Tokens of a sequence from one position up to another."""


@dataclass(frozen=True, slots=True)
class PrefixKey:
    """What a block's content depends on besides its tokens and those before it.

    salt: requests share blocks only with requests of the same salt. adapter: name of the adapter that the weights
    carry. prompt_length: set for models whose rotary frequencies follow the length of the prompt.
    """

    salt: str | None = None
    adapter: str | None = None
    prompt_length: int | None = None


class BlockHashes:
    """Hashes of one sequence's full blocks, computed once each, as far as they are asked for."""

    __slots__ = ("_block_size", "_hashes", "_root", "_secret")

    def __init__(self, key: PrefixKey, block_size: int, secret: bytes) -> None:
        self._block_size = block_size
        self._secret = secret
        self._root = self._hash(repr((key.salt, key.adapter, key.prompt_length)).encode())
        self._hashes: list[bytes] = []

    def upto(self, blocks: int, tokens: TokenSlice) -> list[bytes]:
        """Hashes of at least the first `blocks` blocks, whose tokens must exist."""
        size = self._block_size
        for j in range(len(self._hashes), blocks):
            parent = self._hashes[-1] if j else self._root
            self._hashes.append(self._hash(parent + array("q", tokens(j * size, (j + 1) * size)).tobytes()))
        return self._hashes

    def _hash(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, digest_size=16, key=self._secret).digest()


class PrefixCache:
    """Block of each (table, hash), and back. Entries live until the pool hands their block out anew.

    queries, hits: prompt tokens that were looked up and found, over the life of the process.
    """

    def __init__(self) -> None:
        self.secret = secrets.token_bytes(32)
        self.queries = 0
        self.hits = 0
        self._block: dict[tuple[int, bytes], int] = {}
        self._key: dict[int, tuple[int, bytes]] = {}

    def __len__(self) -> int:
        return len(self._block)

    def find(self, table: int, block_hash: bytes) -> int | None:
        return self._block.get((table, block_hash))

    def add(self, table: int, block_hash: bytes, block: int) -> None:
        """Make a block findable, now that its keys and values are written. Of several equal blocks the first stays."""
        key = (table, block_hash)
        if block != NULL_BLOCK and key not in self._block and block not in self._key:
            self._block[key] = block
            self._key[block] = key

    def holds(self, block: int) -> bool:
        """Whether `block` can be found."""
        return block in self._key

    def forget(self, block: int) -> None:
        """The content of `block` is about to be lost."""
        key = self._key.pop(block, None)
        if key is not None:
            del self._block[key]

    def reset(self) -> None:
        """Forget every block."""
        self._block.clear()
        self._key.clear()
