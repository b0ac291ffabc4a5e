"""Declarations of standing gangs in a file (YAML or JSON, one document or several, each with a `name`), and a list of
those in the ledger."""

from __future__ import annotations

import contextlib
from typing import Any

import yaml

from ...dispatcher.client.client import Client
from ...dispatcher.gangs.declarations import declared_sets, parse_set
from ...schemas.errors.base import InvalidName, InvalidRequest, Unavailable
from ...schemas.records.gangs import GangSetRecord
from .gang_follow import list_gangs
from .gangs import SetRow


def parse_sets(text: str, source: str) -> dict[str, GangSetRecord]:
    """Declarations by name.

    Args:
        source: the file's name, for error texts.

    Raises:
        InvalidRequest: names the file, the set, and each invalid field.
    """
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise InvalidRequest(f"{source} is not YAML: {_where(error)}") from error
    if not documents:
        raise InvalidRequest(f"{source} declares nothing: give name, gangs and gang")
    found: dict[str, GangSetRecord] = {}
    for number, document in enumerate(documents, 1):
        name, record = _parse(document, source if len(documents) == 1 else f"{source}, document {number}")
        if name in found:
            raise InvalidRequest(f"{source} declares {name} twice")
        found[name] = record
    return found


def _parse(document: Any, where: str) -> tuple[str, GangSetRecord]:
    if not isinstance(document, dict):
        raise InvalidRequest(f"{where} is not a map: give name, gangs and gang")
    fields = dict(document)
    name = fields.pop("name", None)
    if not isinstance(name, str):
        raise InvalidRequest(f"{where} has no name: add 'name: llama', for example")
    try:
        return name, parse_set(name, fields, f"{where}, ")
    except InvalidName as error:
        raise InvalidRequest(f"{where}: {error.message}") from error


def _where(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else str(problem)


async def read_sets(client: Client) -> list[SetRow]:
    """All valid declarations by name, with their gangs."""
    sets = await declared_sets(await client.router.ledger())
    gangs = None
    with contextlib.suppress(Unavailable):
        gangs = (await list_gangs(client)).gangs
    return [
        (name, record, None if gangs is None else [gang for gang in gangs if gang.gangset == name])
        for name, record in sets.items()
    ]
