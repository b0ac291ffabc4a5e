"""A durable task as its producer published it: what subject, headers and body say. Pure.

Anything published to `<ns>.task.<endpoint>.<method>` is one; the body is its arguments, as of a call. The headers are
those of schemas.headers, each optional. A header that cannot be understood makes the task a dead letter at once, with a
text that says what to write instead; it is never ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

from . import headers
from .bounds import plain
from .codec import Format
from .duration import parse_duration
from .errors import GanglineError, InvalidRequest
from .limits import MAX_DEADLINE_S
from .names import Names, check_name

MAX_ATTEMPTS: Final = 10_000
MAX_COUNTED: Final = 1_000_000_000
MAX_BACKOFF_S: Final = 86_400.0
MAX_RESULT_TTL_S: Final = 365 * 86_400.0
MAX_PRIORITY: Final = 1_000_000
MAX_KEY_CHARS: Final = 1024
LAST_MOMENT: Final = datetime(2262, 1, 1, tzinfo=UTC).timestamp()
"""The server counts nanoseconds in 64 bits: what is put off for longer than these can say, it starts at once."""

_YES: Final = frozenset(("true", "1", "yes"))
_NO: Final = frozenset(("false", "0", "no", ""))
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What is asked for. None: as the endpoint's route says, or the default."""

    endpoint: str
    method: str
    job: str
    """Its id, unique; see headers.JOB."""
    fmt: Format = Format.JSON
    key: str | None = None
    model: str | None = None
    pool: str | None = None
    priority: int = 0
    ordered: bool = False
    published_at: float = 0.0
    """Unix time, of the server's clock."""
    deadline_at: float | None = None
    """Unix time until which it may run."""
    not_before: float | None = None
    """Unix time before which it must not run; only for the dispatcher, which gives it back to the server until then."""
    cron: str | None = None
    """It is a schedule, to be given to the server."""
    timeout_s: float | None = None
    """How long one try may run."""
    max_attempts: int | None = None
    attempts: int = 0
    """How often it had been started before it became a dead letter, of one that is submitted anew as the same job. Its
    attempts are counted on from there, so that they go on growing; `max_attempts` are those to come."""
    backoff_s: float | None = None
    result_ttl_s: float | None = None
    """0: the result is not kept."""
    events: bool = False
    trace: str | None = None
    """`traceparent` of whoever published it."""

    @property
    def target(self) -> str:
        return f"{self.endpoint}.{self.method}"

    @classmethod
    def parse(
        cls, names: Names, subject: str, given: Mapping[str, str] | None, *, sequence: int, published_at: float
    ) -> Submission:
        """Read subject and headers.

        Args:
            sequence: in the stream; the id of a task that has no other.
            published_at: Unix time that the server stored it with.

        Raises:
            InvalidRequest: says which header (or that the subject) is wrong, and how to write it.
        """
        endpoint, method = names.parse_task(subject)
        if not given:
            return cls(endpoint=endpoint, method=method, job=str(sequence), published_at=published_at)
        fields = _Fields(given)
        return cls(
            endpoint=endpoint,
            method=method,
            job=fields.read(headers.JOB, _job) or str(sequence),
            fmt=Format.of(given),
            key=fields.read(headers.KEY, _key),
            model=fields.read(headers.MODEL, str),
            pool=fields.read(headers.POOL, _pool),
            priority=fields.read(headers.PRIORITY, _whole(-MAX_PRIORITY, MAX_PRIORITY)) or 0,
            ordered=fields.read(headers.ORDERED, _flag) or False,
            published_at=published_at,
            deadline_at=fields.read(headers.DEADLINE, _until(published_at)),
            not_before=fields.read(headers.DELAY, _until(published_at)),
            cron=fields.read(headers.CRON, _schedule),
            timeout_s=fields.read(headers.TIMEOUT, _length(0.001, MAX_DEADLINE_S)),
            max_attempts=fields.read(headers.MAX_ATTEMPTS, _whole(1, MAX_ATTEMPTS)),
            attempts=fields.read(headers.ATTEMPTS, _whole(0, MAX_COUNTED)) or 0,
            backoff_s=fields.read(headers.BACKOFF, _length(0.0, MAX_BACKOFF_S)),
            result_ttl_s=fields.read(headers.RESULT_TTL, _length(0.0, MAX_RESULT_TTL_S)),
            events=fields.read(headers.EVENTS, _flag) or False,
            trace=fields.read(headers.TRACEPARENT, str),
        )

    def __post_init__(self) -> None:
        if self.ordered and self.key is None:
            raise InvalidRequest(f"{headers.ORDERED} needs a {headers.KEY}: order is kept among tasks of one key")


class _Fields:
    """Headers by name, in whatever case."""

    __slots__ = ("_given",)

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}

    def read(self, name: str, parse: Callable[[str], T]) -> T | None:
        text = self._given.get(name.lower())
        if text is None:
            return None
        try:
            return parse(text.strip())
        except ValueError as error:
            raise InvalidRequest(f"{name}: {error}") from None
        except GanglineError as error:
            raise type(error)(f"{name}: {error.message}") from None


def _job(text: str) -> str:
    return check_name(text, "job")


def _pool(text: str) -> str:
    return check_name(text, "pool")


def _key(text: str) -> str:
    if not text or len(text) > MAX_KEY_CHARS:
        raise ValueError(f"the key has {len(text)} characters: give 1 to {MAX_KEY_CHARS}")
    return text


def _schedule(text: str) -> str:
    if not text:
        raise ValueError("it is empty: give six fields of cron, such as '0 0 3 * * *', or '@every 5m'")
    return text


def _flag(text: str) -> bool:
    word = text.lower()
    if word in _YES:
        return True
    if word in _NO:
        return False
    raise ValueError(f"{text[:40]!r} is neither 'true' nor 'false'")


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"{text[:40]!r} is no whole number") from None
        if not low <= number <= high:
            raise ValueError(f"{number} is out of bounds: give {low} to {high}")
        return number

    return parse


def _length(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        seconds = parse_duration(text)
        if not low <= seconds <= high:
            raise ValueError(f"{text[:40]!r} is out of bounds: give {plain(low)} to {plain(high)} seconds")
        return seconds

    return parse


def _until(start: float) -> Callable[[str], float]:
    """A length of time from `start`, or a moment."""

    def parse(text: str) -> float:
        try:
            return start + _length(0.0, MAX_DEADLINE_S)(text)
        except ValueError as error:
            try:
                moment = datetime.fromisoformat(text)
            except ValueError:
                raise ValueError(f"{error}, or a moment such as 2030-01-31T12:00:00Z") from None
            if moment.tzinfo is None:
                raise ValueError(f"{text[:40]!r} has no time zone: add Z for UTC") from None
            if not moment.timestamp() < LAST_MOMENT:
                raise ValueError(f"{text[:40]!r} is after the year 2261: give an earlier moment") from None
            return moment.timestamp()

    return parse
