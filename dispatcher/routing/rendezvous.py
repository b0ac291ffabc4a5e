"""Rendezvous hashing (Thaler & Ravishankar 1996): the same key goes to the same worker, in every process.

Each worker's name is hashed once, each key once; the pair's score mixes the two (the finaliser of SplitMix64). When a
worker goes, only its own keys move; when one comes, only the keys that it wins.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_MASK: Final = (1 << 64) - 1


def fingerprint(name: str) -> int:
    """64 bits that depend on the text alone (not on PYTHONHASHSEED)."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def score(key: int, worker: int) -> int:
    """How much the key wants that worker; the highest wins."""
    x = (key ^ worker) & _MASK
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
