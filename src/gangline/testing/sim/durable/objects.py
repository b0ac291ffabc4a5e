"""Large results as the server has them."""

from __future__ import annotations

import base64
import json

from ....bus.memory.server import MemoryServer
from ....bus.memory.stream_store import StreamStore
from ....bus.port.subjects import SubjectPattern
from ....schemas.names import Names


class Objects:
    """Reads the object store without asking over a connection. See bus/object_store.py for how it is kept."""

    def __init__(self, hub: MemoryServer, names: Names) -> None:
        self._hub = hub
        self._bucket = names.objects_store

    def body(self, name: str) -> bytes | None:
        """None: there is none of that name, or not all of it."""
        stream = self._stream
        described = None if stream is None else stream.last(self._described_at(name))
        told = {} if described is None else json.loads(described.data)
        if stream is None or not told or told.get("deleted"):
            return None
        pieces = [message.data for message in stream.after(1, SubjectPattern(f"$O.{self._bucket}.C.{told['nuid']}"))]
        body = b"".join(pieces)
        return body if (len(pieces), len(body)) == (told["chunks"], told["size"]) else None

    def _described_at(self, name: str) -> str:
        return f"$O.{self._bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"

    @property
    def _stream(self) -> StreamStore | None:
        return self._hub.streams.find(f"OBJ_{self._bucket}")
