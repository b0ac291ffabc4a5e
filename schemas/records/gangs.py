"""What a gang is asked to be, and what the ledger says of it. Messages about it are in schemas.messages.gangs.

A gang has *ranks*; each rank is made of *parts*, slots of one worker each. Part 0 is the member itself: there its tasks
run, and strategies speak of it alone. Further parts are held with it and wherever they are: licences, for example.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import chain, repeat
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..errors.base import InvalidName
from ..limits import MAX_NAME_CHARS, MAX_SLOTS, MAX_TOKEN_CHARS, MAX_TTL_S, MIN_TTL_S
from ..names import check_name
from .workers import Record

MAX_SEATS: Final = 900
"""Most parts of one gang, over all ranks: its records must fit into one atomic batch (1000 messages)."""

ENDED_TTL_S: Final = 60.0
"""How long the record of an ended gang can still be seen."""


def _pool_name(value: str) -> str:
    try:
        return check_name(value, "pool")
    except InvalidName as error:  # a record may be written by hand; pydantic collects only ValueErrors
        raise ValueError(error.message) from error


PoolName = Annotated[str, Field(max_length=MAX_NAME_CHARS), AfterValidator(_pool_name)]


class Strategy(StrEnum):
    """Where the members of a gang go. A worker that does not say its node counts as a node of its own."""

    PACK = "pack"
    """As few nodes as possible."""
    SPREAD = "spread"
    """Over as many nodes as possible, evenly."""
    STRICT_PACK = "strict_pack"
    """One node, or nothing."""
    STRICT_SPREAD = "strict_spread"
    """Each member on a node of its own, or nothing."""


class RestartPolicy(StrEnum):
    """What becomes of a gang when a member fails."""

    RESTART_GANG = "restart_gang"
    """All members stop, and the gang forms again as the next generation."""
    RESTART_MEMBER = "restart_member"
    """The others go on; only what was lost is placed again. Not possible in time: as `restart_gang`."""
    FAIL = "fail"
    """All members stop, and the gang ends."""


class GangState(StrEnum):
    """As the ledger has it; between the steps of forming, a gang is still `queued`."""

    QUEUED = "queued"
    FORMED = "formed"
    RETIRING = "retiring"
    """Serves what it has, is sent nothing new, and is torn down soon (a standing gang that was replaced)."""
    TEARING_DOWN = "tearing_down"
    ENDED = "ended"


class Part(BaseModel):
    """Slots of one worker."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pool: PoolName
    slots: int = Field(default=1, ge=1, le=MAX_SLOTS)
    labels: dict[str, str] = Field(default_factory=dict)
    """The worker must have all of these. `zone` stands for the worker's zone when it has no label of that name."""


class Bundle(Part):
    """`count` members of one shape. What an object has beside `extras` and the counts is part 0.

    Raises:
        ValueError: one of `min_count` and `max_count` without the other, or not `min_count <= count <= max_count`.
    """

    count: int = Field(default=1, ge=1, le=MAX_SEATS)
    """With a range: of the living generation, or of the last; `min_count` before the first."""
    min_count: int | None = Field(default=None, ge=1, le=MAX_SEATS)
    """With `max_count`: each generation has as many members as there is room for, within this range."""
    max_count: int | None = Field(default=None, ge=1, le=MAX_SEATS)
    extras: tuple[Part, ...] = ()
    """Further parts of each of these members."""

    @model_validator(mode="before")
    @classmethod
    def _begins_small(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("min_count") is not None and "count" not in value:
            return {**value, "count": value["min_count"]}
        return value

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        if (self.min_count is None) != (self.max_count is None):
            raise ValueError("give both min_count and max_count, or neither")
        if self.min_count is not None and self.max_count is not None:
            if self.min_count > self.max_count:
                raise ValueError(f"the smallest size is {self.min_count}, the largest {self.max_count}")
            if not self.min_count <= self.count <= self.max_count:
                raise ValueError(f"count is {self.count}, not between {self.min_count} and {self.max_count}")
        return self

    @property
    def most(self) -> int:
        """`count`, or the end of its range."""
        return self.count if self.max_count is None else self.max_count

    @property
    def parts(self) -> tuple[Part, ...]:
        return (Part(pool=self.pool, slots=self.slots, labels=self.labels), *self.extras)


class GangSpec(BaseModel):
    """What was asked for. Either `bundles`, or `pool`, `size`, `slots` and `labels` for one bundle. `size` is a number,
    or `[smallest, largest]` of a gang whose generations have as many members as there is room for.

    Raises:
        ValueError: neither or both ways were used, more than MAX_SEATS parts, or a range of several bundles.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    bundles: tuple[Bundle, ...] = ()
    """Ranks are numbered through the bundles in this order."""
    strategy: Strategy = Strategy.PACK
    priority: int = Field(default=0, ge=-1_000_000, le=1_000_000)
    """Higher goes first."""
    preempt: bool = False
    """Gangs of lower priority may be torn down (and queued again) to make room."""
    restart: RestartPolicy = RestartPolicy.RESTART_GANG
    max_restarts: int | None = Field(default=3, ge=0)
    """Failures of the gang, not of members, before it ends. None: no bound. Drains and preemptions do not count."""
    backoff_s: float = Field(default=0.5, ge=0.0, le=3600.0)
    """Wait before the first restart; doubles with each further one, up to 30 s, with jitter."""
    grace_s: float = Field(default=5.0, ge=0.0, le=3600.0)
    """How long a member may take to stop at a teardown before it is killed."""
    start_timeout_s: float = Field(default=600.0, ge=0.1, le=MAX_TTL_S)
    """How long the `gang_start` functions of a member may take, all together. They are cancelled then, and the member
    has failed at its start. Long enough for the slowest load of a model that you know."""
    ttl_s: float = Field(default=15.0, ge=MIN_TTL_S, le=MAX_TTL_S)
    """The gang ends when its owner has not renewed for so long. Of no meaning for standing gangs."""
    owner: str = Field(default="", max_length=256)
    """For people: who asked and why."""
    traceparent: str | None = Field(default=None, max_length=128)

    @model_validator(mode="before")
    @classmethod
    def _one_bundle(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        short = {"pool": "pool", "size": "count", "slots": "slots", "labels": "labels", "extras": "extras"}
        given = {short[key]: value[key] for key in short if key in value}
        if not given:
            return value
        if value.get("bundles"):
            raise ValueError(f"give either bundles or {', '.join(key for key in short if key in value)}, not both")
        count = given.get("count", 1)
        if isinstance(count, (list, tuple)):
            if len(count) != 2:
                raise ValueError("size is a number, or [smallest, largest]")
            del given["count"]
            given |= {"count": count[0]} if count[0] == count[1] else {"min_count": count[0], "max_count": count[1]}
        else:
            given = {"count": 1, **given}
        rest = {key: item for key, item in value.items() if key not in short}
        return {**rest, "bundles": [given]}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.bundles:
            raise ValueError("give a pool and a size, or bundles")
        if self.elastic and len(self.bundles) > 1:
            raise ValueError("only a gang of one bundle can have a range of sizes")
        seats = sum(bundle.most * (1 + len(bundle.extras)) for bundle in self.bundles)
        if seats > MAX_SEATS:
            raise ValueError(f"{seats} parts; one gang has at most {MAX_SEATS}")
        return self

    @property
    def size(self) -> int:
        """The number of members: the world size. With a range: of the living generation, or of the last; the smallest
        before the first."""
        return sum(bundle.count for bundle in self.bundles)

    @property
    def pools(self) -> frozenset[str]:
        """Of all parts."""
        return frozenset(part.pool for bundle in self.bundles for part in bundle.parts)

    @property
    def elastic(self) -> bool:
        """Whether its generations may have different sizes."""
        return any(bundle.min_count is not None for bundle in self.bundles)

    @property
    def sizes(self) -> tuple[int, int]:
        """The smallest and the largest."""
        first = self.bundles[0]
        if first.min_count is None or first.max_count is None:
            return self.size, self.size
        return first.min_count, first.max_count

    def sized(self, size: int) -> Self:
        """The same, of that size; itself if that is its only one."""
        if not self.elastic or self.size == size:
            return self
        return self.model_copy(update={"bundles": (self.bundles[0].model_copy(update={"count": size}),)})

    @property
    def smallest(self) -> Self:
        return self.sized(self.sizes[0])

    @property
    def ranks(self) -> tuple[tuple[Part, ...], ...]:
        """The parts of each rank."""
        return tuple(chain.from_iterable(repeat(bundle.parts, bundle.count) for bundle in self.bundles))


class StrictPart(Part):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StrictBundle(Bundle):
    model_config = ConfigDict(frozen=True, extra="forbid")

    extras: tuple[StrictPart, ...] = ()


class StrictGangSpec(GangSpec):
    """As GangSpec, but what people typed: a misspelt field is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bundles: tuple[StrictBundle, ...] = ()

    def relaxed(self) -> GangSpec:
        """The plain form, as records hold it and equality compares it."""
        return GangSpec.model_validate({name: getattr(self, name) for name in GangSpec.model_fields} | self._plain())

    def _plain(self) -> dict[str, Any]:
        return {"bundles": [bundle.model_dump() for bundle in self.bundles]}


class Seat(BaseModel):
    """One part of one rank, on its worker, with its token."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rank: int
    part: int = 0
    pool: str
    worker: str
    slots: int = 1
    token: str
    """Dispatch to the member with it: a multi-use lease of the worker, for `slots` slots. Others than the owner are
    told its public id instead."""
    epoch: int
    node: str = ""
    zone: str = ""
    address: str = ""
    labels: dict[str, str] = Field(default_factory=dict)


class HostPort(NamedTuple):
    """Where somebody can be met: `host, port = ...`, or `.host` and `.port`."""

    host: str
    port: int


class Rendezvous(BaseModel):
    """Where rank 0 can be met: its worker's host, and a port that was free there when the gang was held."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    host: str
    port: int

    @property
    def plain(self) -> HostPort:
        """As tasks and owners are given it."""
        return HostPort(self.host, self.port)


class GangRecord(Record):
    """`gang.<id>`. Within its batch it is the last write when members are granted and the first when they are ended:
    whoever reads in the order of revisions and comes to a record that says formed has just seen exactly its members,
    and judges there; one that says tearing_down is followed by their end."""

    id: str
    state: GangState
    spec: GangSpec
    generation: int = 1
    """Grows with each change of the membership; what carries an older one is void."""
    seats: tuple[Seat, ...] = ()
    """Of this generation; kept through the teardown, so that a new leader knows whom to stop."""
    rendezvous: Rendezvous | None = None
    fence: int = 0
    """Grows over the whole system. 0: this record's own revision; see `fence_at`."""
    owner_token: str = Field(default="", max_length=MAX_TOKEN_CHARS)
    """Who shows it may renew and release."""
    restarts: int = 0
    """How often it was formed again or repaired so far, for whatever reason: the generations before this one."""
    failures: int | None = None
    """How many failures count against `max_restarts`; drains and preemptions do not. None: written by an older
    coordinator, whose `restarts` are these."""
    reason: str = ""
    """Why it was torn down, last."""
    rank: int | None = None
    """Whose failure that was."""
    ends: bool = False
    """Tearing down for good; otherwise the next generation follows."""
    gangset: str | None = None
    """The standing set that it belongs to."""
    created_at: float = 0.0
    """Unix time of the request; with `spec.priority` the place in the queue."""
    formed_at: float = 0.0
    """Unix time."""
    ready: bool | None = None
    """Of a formed gang of a standing set: whether all its members have started (their `gang_start` functions have
    ended well), so that callers may be sent to it. None: of another gang, whose coordinator knows it, or written by an
    older coordinator, to which formed was ready."""
    deadline_at: float | None = None
    """Unix time until which a gang that never formed is queued."""

    @property
    def counted(self) -> int:
        """Failures that count against `max_restarts`."""
        return self.restarts if self.failures is None else self.failures

    def fence_at(self, revision: int) -> int:
        """The fence, given the revision at which this record was read."""
        return self.fence or revision


class HeldSeat(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    rank: int
    part: int = 0
    slots: int = 1
    token: str


class MemberRecord(Record):
    """`member.<pool>.<worker>.<gang>`: what a gang holds of one worker. The grant itself: absent is not granted."""

    gang: str
    generation: int
    epoch: int
    seats: tuple[HeldSeat, ...]


class LeaderRecord(Record):
    """`leader`: rewritten only by compare-and-set. Its revision fences everything that a coordinator writes."""

    term: int
    instance: str
    since: float = 0.0
    """Unix time of the election."""


class LeaderAlive(Record):
    """`leader_alive`: renewed every half second, expires after two."""

    term: int
    instance: str


class ShardMap(Record):
    """`shards`: which shard of the coordinators keeps which pools. Changed only by compare-and-set."""

    shards: dict[str, tuple[PoolName, ...]] = Field(default_factory=dict)
    """Pools by shard; no pool is in two."""


class Route(StrEnum):
    """Which members of a standing gang a call runs on."""

    RANK0 = "rank0"
    ALL = "all"
    """On every rank; the answer is the list of results by rank."""


class GangSetRecord(Record):
    """`gangset.<name>`: gangs of one shape that are kept up. May be written by hand; a misspelt field is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gangs: int = Field(ge=0, le=10_000)
    gang: StrictGangSpec
    surge: int = Field(default=1, ge=0, le=1)
    """1: a replacement forms before the old gang goes, where there is room for both. 0: the old one goes first."""
    surge_wait_s: float = Field(default=3.0, ge=0.0, le=3600.0)
    """Surge 1: how long a replacement waits for room beside the old gang. Then the old one goes first after all. Off a
    draining worker: at most a fifth of its grace."""
    route: Route = Route.RANK0
    retire_s: float = Field(default=1.0, ge=0.0, le=3600.0)
    """How long a replaced gang still serves after callers were told to go elsewhere."""
    min_ready_s: float = Field(default=1.0, ge=0.0, le=3600.0)
    """How long a replacement must have been ready before the gang that it replaces goes. Longer than what a member that
    starts well and breaks soon after takes to break."""
    roll_failures: int = Field(default=3, ge=1, le=1000)
    """How often gangs of a new shape may fail, with none of them ready for `min_ready_s`, until the roll stops and the
    set is kept up in the shape that served before. Declare it again to try again."""

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.gang.elastic:
            raise ValueError("gang: the gangs of a set have one size, not a range")
        return self

    @property
    def template(self) -> GangSpec:
        """What each gang is asked to be. Unbounded restarts unless a bound is written."""
        return template_of(self.gang)


def template_of(gang: StrictGangSpec) -> GangSpec:
    """What each gang of a set is asked to be, given what was declared."""
    spec = gang.relaxed()
    unbounded = "max_restarts" not in gang.model_fields_set
    return spec.model_copy(update={"max_restarts": None}) if unbounded else spec


def write_gang(gang: StrictGangSpec) -> dict[str, Any]:
    """As it was declared: only what was said of it."""
    return gang.model_dump(mode="json", exclude_unset=True)


def read_gang(written: dict[str, Any] | None) -> StrictGangSpec | None:
    """The inverse; None also for what cannot be read."""
    try:
        return None if written is None else StrictGangSpec.model_validate(written)
    except ValidationError:
        return None


class SetState(StrEnum):
    """How a standing set fares."""

    STEADY = "steady"
    """As many gangs as declared are ready, all are of the declared shape, and some gang of that has been ready for
    `min_ready_s`."""
    ROLLING = "rolling"
    """On the way there."""
    FAILING = "failing"
    """Gangs of the declared shape failed too often, and none has been ready for `min_ready_s`."""


class GangSetStatus(Record):
    """`gangset_status.<name>`: how a standing set fares. Written by the leading coordinator alone."""

    state: SetState
    reason: str = ""
    """What it waits for, or why it fails. Empty when steady."""
    gangs: int
    """So many are declared."""
    formed: int = 0
    """Gangs of the declared shape that are formed, ..."""
    ready: int = 0
    """... and of these, those that callers may be sent to."""
    old: int = 0
    """Gangs that callers may be sent to and that are of another shape, or on draining workers."""
    failures: int = 0
    """Of gangs of the declared shape since it was declared, or since one was ready for `min_ready_s`."""
    last_failure: str = ""
    """The last of these."""
    stopped: bool = False
    """The roll was stopped: the set is kept up in the shape of before."""
    served: bool = False
    """A gang of the declared shape has been ready for `min_ready_s`."""
    current: dict[str, Any] = Field(default_factory=dict)
    """The `gang` of the declaration that this is about."""
    previous: dict[str, Any] | None = None
    """The `gang` that was declared before and has served: what a rollback declares."""
    at: float = 0.0
    """Unix time."""
