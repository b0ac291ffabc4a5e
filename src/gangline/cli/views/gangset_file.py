"""Declarations of standing gangs in a file: YAML or JSON, one document or several, each with a `name`."""

from __future__ import annotations

from typing import Any

import yaml
from pydantic import ValidationError

from ...schemas.errors.base import GanglineError, InvalidRequest
from ...schemas.names import check_name
from ...schemas.records.gangs import GangSetRecord


def parse_sets(text: str, source: str) -> dict[str, GangSetRecord]:
    """Declarations by name.

    Args:
        source: the file's name, for errors.

    Raises:
        InvalidRequest: names the file, the set, and each field that is wrong.
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
        check_name(name, "set")
        return name, GangSetRecord.model_validate(fields)
    except ValidationError as error:
        complaints = "; ".join(_complaint(item) for item in error.errors(include_url=False))
        raise InvalidRequest(f"{where}, set {name}: {complaints}") from error
    except GanglineError as error:
        raise InvalidRequest(f"{where}: {error.message}") from error


def _complaint(item: Any) -> str:
    place = ".".join(str(part) for part in item["loc"])
    # What was typed is the short form of one bundle.
    place = place.replace("gang.bundles.0.count", "gang.size").replace("gang.bundles.0.", "gang.")
    return f"{place}: {item['msg']}" if place else str(item["msg"])


def _where(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else str(problem)
