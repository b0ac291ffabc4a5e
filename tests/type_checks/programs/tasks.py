"""Tasks of the programs beside this one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from pydantic import BaseModel

import gangline

pool = gangline.Pool("words", slots=4)


class Database:
    """A resource."""


class Order(BaseModel):
    id: int
    note: str = ""


@pool.task
async def count(text: str, *, least: int = 1) -> int:
    return len([word for word in text.split() if len(word) >= least])


@pool.task(slots=2)
def thumbnail(path: str, width: int = 128) -> bytes:
    return path.encode()[:width]


@pool.task
async def numbers(to: int) -> AsyncIterator[int]:
    for number in range(to):
        yield number


@pool.task
def lines(text: str) -> Iterator[str]:
    yield from text.splitlines()


@pool.task
async def place(order: Order, db: Database = gangline.resource()) -> Order:
    return order


@pool.task
async def store(name: str, db: Annotated[Database, gangline.Resource]) -> None:
    return None


@gangline.remote("media.resize")
async def resize(image: bytes, width: int) -> bytes:
    raise NotImplementedError
