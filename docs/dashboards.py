"""Grafana dashboards, Prometheus alerts and the page that says what to do about each, made from the catalogue of
metrics.

`python docs/generate.py` writes them. An expression names metrics by `[gangline.gang.formed]`; one that the catalogue
does not have is an error here, and tests compare names and labels with what a process exports.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gangline.telemetry.metrics.catalogue import METRICS

ROOT: Final = Path(__file__).resolve().parents[1]
GRAFANA: Final = ROOT / "deploy" / "grafana"
RULES: Final = ROOT / "deploy" / "prometheus" / "rules.yaml"
PAGE: Final = ROOT / "docs" / "how-to" / "alerts.md"


def resolved(expression: str) -> str:
    """The expression with Prometheus's names.

    Raises:
        KeyError: there is no such metric.
    """

    def name(match: re.Match[str]) -> str:
        full, _, part = match[1].partition(":")
        return METRICS[full].prometheus + (f"_{part}" if part else "")

    return re.sub(r"\[(gangline\.[a-z_.]+(?::[a-z]+)?)\]", name, expression)


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    expressions: tuple[tuple[str, str], ...]
    """Expression and legend. `$pool` and the like are variables of the dashboard."""
    unit: str = "short"
    stacked: bool = False


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """A row for each question."""

    name: str
    title: str
    variables: tuple[tuple[str, str], ...]
    """Label, and the metric whose values it takes."""
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


P: Final = '{namespace=~"$namespace", pool=~"$pool"}'
E: Final = '{namespace=~"$namespace", endpoint=~"$endpoint"}'
N: Final = '{namespace=~"$namespace"}'
QUANTILE: Final = "histogram_quantile({0}, sum by (namespace, {1}) (rate([{2}:bucket]{3}[{4}])))"
USED: Final = "sum by (namespace, pool) ([gangline.worker.slots.running]{0} + [gangline.worker.slots.reserved]{0})"
WAITS: Final = (
    "sum by (namespace, {0}) (rate([gangline.worker.gang_wait_time:sum][{1}])) "
    "/ sum by (namespace, {0}) ([gangline.worker.gang_members] > 0)"
)
"""The share of its time that a rank waits for the other ranks of its gang."""
GONE: Final = "{0} (max_over_time([{1}][1d])) unless {0} ([{1}])"
"""What was exported within the last day, and no longer is."""

DASHBOARDS: Final = (
    Dashboard(
        name="overview",
        title="Gangline: overview",
        variables=(("namespace", "gangline.worker.slots.total"), ("pool", "gangline.worker.slots.total")),
        rows=(
            (
                "Is it saturated?",
                (
                    Panel(
                        title="Slots in use",
                        unit="percentunit",
                        expressions=(
                            (
                                f"{USED.format(P)} / sum by (namespace, pool) ([gangline.worker.slots.total]{P})",
                                "{{pool}}",
                            ),
                        ),
                    ),
                    Panel(
                        title="Slots wanted, by who needs them",
                        stacked=True,
                        expressions=((f"sum by (namespace, source) ([gangline.pool.slots_wanted]{P})", "{{source}}"),),
                    ),
                ),
            ),
            (
                "Who waits?",
                (
                    Panel(
                        title="Calls that wait for a worker",
                        expressions=((f"sum by (namespace, pool) ([gangline.router.queue_size]{P})", "{{pool}}"),),
                    ),
                    Panel(
                        title="Oldest job and oldest gang",
                        unit="s",
                        expressions=(
                            (f"max by (namespace, endpoint) ([gangline.queue.oldest]{N})", "job of {{endpoint}}"),
                            (f"max by (namespace) ([gangline.gang.queue_oldest]{N})", "gang"),
                        ),
                    ),
                ),
            ),
            (
                "What fails?",
                (
                    Panel(
                        title="Failed calls",
                        unit="reqps",
                        expressions=(
                            (
                                f"sum by (namespace, endpoint, code) (rate([gangline.router.errors]{P}[5m]))",
                                "{{endpoint}} {{code}}",
                            ),
                        ),
                    ),
                    Panel(
                        title="Dead letters",
                        expressions=(
                            (
                                f"sum by (namespace, endpoint, reason) (increase([gangline.queue.dead]{N}[1h]))",
                                "{{endpoint}} {{reason}}",
                            ),
                        ),
                    ),
                ),
            ),
            (
                "Who leads?",
                (
                    Panel(
                        title="Elections in the last hour",
                        expressions=(
                            (f"sum by (namespace) (increase([gangline.coordinator.terms]{N}[1h]))", "elections"),
                        ),
                    ),
                    Panel(
                        title="Records of the history lost",
                        expressions=(
                            (
                                "sum by (namespace, writer) "
                                '(increase([gangline.history.records]{outcome="dropped"}[1h]))',
                                "{{writer}}",
                            ),
                        ),
                    ),
                ),
            ),
        ),
    ),
    Dashboard(
        name="pool",
        title="Gangline: pool",
        variables=(("namespace", "gangline.worker.slots.total"), ("pool", "gangline.worker.slots.total")),
        rows=(
            (
                "How full is each worker?",
                (
                    Panel(
                        title="Running and reserved slots",
                        stacked=True,
                        expressions=(
                            (f"sum by (namespace, worker) ([gangline.worker.slots.running]{P})", "{{worker}} runs"),
                            (
                                f"sum by (namespace, worker) ([gangline.worker.slots.reserved]{P})",
                                "{{worker}} reserved",
                            ),
                        ),
                    ),
                    Panel(
                        title="Free slots",
                        expressions=(
                            (
                                f"sum by (namespace, pool) ([gangline.worker.slots.total]{P}) - {USED.format(P)}",
                                "{{pool}}",
                            ),
                        ),
                    ),
                ),
            ),
            (
                "How fast is it?",
                (
                    Panel(
                        title="Tasks started",
                        unit="reqps",
                        expressions=(
                            (
                                f"sum by (namespace, method) (rate([gangline.worker.tasks.started]{P}[5m]))",
                                "{{method}}",
                            ),
                        ),
                    ),
                    Panel(
                        title="Execution time, 99 of 100 below",
                        unit="s",
                        expressions=(
                            (
                                QUANTILE.format(0.99, "le, method", "gangline.worker.task_time", P, "5m"),
                                "{{method}}",
                            ),
                        ),
                    ),
                ),
            ),
            (
                "What goes wrong?",
                (
                    Panel(
                        title="Rejections",
                        unit="reqps",
                        expressions=(
                            (f"sum by (namespace, reason) (rate([gangline.worker.rejections]{P}[5m]))", "{{reason}}"),
                        ),
                    ),
                    Panel(
                        title="New epochs",
                        expressions=(
                            (
                                f"sum by (namespace, worker, reason) (increase([gangline.worker.epochs]{P}[1h]))",
                                "{{worker}} {{reason}}",
                            ),
                        ),
                    ),
                ),
            ),
        ),
    ),
    Dashboard(
        name="gangs",
        title="Gangline: gangs",
        variables=(("namespace", "gangline.gang.queue_length"),),
        rows=(
            (
                "What do gangs wait for?",
                (
                    Panel(
                        title="Waiting gangs",
                        stacked=True,
                        expressions=(
                            (
                                f"sum by (namespace, pool, obstacle) ([gangline.gang.waiting]{N})",
                                "{{pool}} {{obstacle}}",
                            ),
                        ),
                    ),
                    Panel(
                        title="Slots they need, and slots kept for the first",
                        expressions=(
                            (f"sum by (namespace, pool) ([gangline.gang.slots_wanted]{N})", "{{pool}} wanted"),
                            (f"sum by (namespace, pool) ([gangline.gang.kept_slots]{N})", "{{pool}} kept"),
                        ),
                    ),
                ),
            ),
            (
                "How long does it take?",
                (
                    Panel(
                        title="Until formed, half and 99 of 100 below",
                        unit="s",
                        expressions=tuple(
                            (
                                QUANTILE.format(part, "le", "gangline.gang.form_time", N, "15m"),
                                str(part),
                            )
                            for part in (0.5, 0.99)
                        ),
                    ),
                    Panel(
                        title="Formed gangs, and those that wait",
                        expressions=(
                            (f"sum by (namespace) ([gangline.gang.formed]{N})", "formed"),
                            (f"sum by (namespace) ([gangline.gang.queue_length]{N})", "wait"),
                        ),
                    ),
                ),
            ),
            (
                "Whom do the others wait for?",
                (
                    Panel(
                        title="Share of its time that a rank waits for the others",
                        unit="percentunit",
                        expressions=((WAITS.format("pool, worker", "5m"), "{{pool}}.{{worker}}"),),
                    ),
                    Panel(
                        title="Waits for the others, 99 of 100 below",
                        unit="s",
                        expressions=(
                            (QUANTILE.format(0.99, "le, pool", "gangline.worker.gang_wait_time", N, "5m"), "{{pool}}"),
                        ),
                    ),
                ),
            ),
            (
                "Why do they end?",
                (
                    Panel(
                        title="Restarts and repairs",
                        expressions=(
                            (
                                f"sum by (namespace, reason, kind) (increase([gangline.gang.restarts]{N}[1h]))",
                                "{{kind}} {{reason}}",
                            ),
                        ),
                    ),
                    Panel(
                        title="Ended for good",
                        expressions=(
                            (f"sum by (namespace, reason) (increase([gangline.gang.ended]{N}[1h]))", "{{reason}}"),
                        ),
                    ),
                ),
            ),
        ),
    ),
    Dashboard(
        name="durable",
        title="Gangline: submitted tasks",
        variables=(("namespace", "gangline.queue.depth"), ("endpoint", "gangline.queue.depth")),
        rows=(
            (
                "Does the queue keep up?",
                (
                    Panel(
                        title="Depth, running, waiting for the next attempt",
                        expressions=(
                            (f"max by (namespace, endpoint) ([gangline.queue.depth]{E})", "{{endpoint}}"),
                            (f"max by (namespace, endpoint) ([gangline.queue.running]{E})", "{{endpoint}} running"),
                            (f"max by (namespace, endpoint) ([gangline.queue.waiting]{E})", "{{endpoint}} waiting"),
                        ),
                    ),
                    Panel(
                        title="Age of the oldest",
                        unit="s",
                        expressions=((f"max by (namespace, endpoint) ([gangline.queue.oldest]{E})", "{{endpoint}}"),),
                    ),
                    Panel(
                        title="What do tasks wait for?",
                        expressions=(
                            (
                                f"max by (namespace, endpoint, obstacle) ([gangline.queue.pending]{E})",
                                "{{endpoint}} {{obstacle}}",
                            ),
                        ),
                    ),
                ),
            ),
            (
                "How long until the first start?",
                (
                    Panel(
                        title="99 of 100 below",
                        unit="s",
                        expressions=(
                            (
                                QUANTILE.format(0.99, "le, endpoint", "gangline.queue.wait_time", E, "5m"),
                                "{{endpoint}}",
                            ),
                        ),
                    ),
                    Panel(
                        title="Started and done",
                        unit="reqps",
                        expressions=(
                            (
                                f"sum by (namespace, endpoint) (rate([gangline.queue.started]{E}[5m]))",
                                "{{endpoint}} started",
                            ),
                            (f"sum by (namespace, endpoint) (rate([gangline.queue.done]{E}[5m]))", "{{endpoint}} done"),
                        ),
                    ),
                ),
            ),
            (
                "What fails?",
                (
                    Panel(
                        title="Retried",
                        unit="reqps",
                        expressions=(
                            (
                                f"sum by (namespace, endpoint, code) (rate([gangline.queue.retried]{E}[5m]))",
                                "{{endpoint}} {{code}}",
                            ),
                        ),
                    ),
                    Panel(
                        title="Takeovers",
                        expressions=(
                            (
                                f"sum by (namespace, endpoint) (increase([gangline.queue.takeovers]{E}[1h]))",
                                "{{endpoint}}",
                            ),
                        ),
                    ),
                ),
            ),
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Alert:
    name: str
    expression: str
    lasts: str
    """How long it must hold, as Prometheus writes it."""
    severity: str
    summary: str
    """With `{{ $labels.pool }}` and the like."""
    means: str
    look: tuple[str, ...]
    """Commands that show more."""
    do: tuple[str, ...]
    fires: tuple[tuple[str, str], ...]
    """Series and values, a minute apart, with which it fires within an hour; for its test."""


_NOT_PAUSED: Final = (
    'unless on (namespace, endpoint) sum by (namespace, endpoint) ([gangline.queue.pending]{obstacle="paused"}) > 0'
)
_STREAM: Final = "by (cluster, domain, account, stream_name)"

ALERTS: Final = (
    Alert(
        name="GangStarves",
        expression="max by (namespace) ([gangline.gang.queue_oldest]) > 300",
        lasts="1m",
        severity="warning",
        summary="A gang has waited for {{ $value | humanizeDuration }}",
        means="The oldest waiting gang has waited for more than five minutes.",
        look=("gangline gang ls", "gangline why GANG", "gangline leases"),
        do=(
            "`why` names who holds the slots that it needs, and until when. End what need not run: `gangline gang rm "
            "GANG --force`, `gangline drain POOL.WORKER`.",
            "Add workers if the pool is full all the time: `gangline.pool.slots_wanted` says how many slots it needs.",
        ),
        fires=(('[gangline.gang.queue_oldest]{namespace="gangline"}', "0+60x60"),),
    ),
    Alert(
        name="GangImpossible",
        expression='sum by (namespace, pool) ([gangline.gang.waiting]{obstacle="impossible"}) > 0',
        lasts="5m",
        severity="warning",
        summary="A gang waits for pool {{ $labels.pool }}, which is too small for it",
        means="The first waiting gang does not fit into its pools, even if all slots were free, and blocks the others.",
        look=("gangline why GANG", "gangline workers POOL"),
        do=("Start more or larger workers, or release the gang: `gangline gang rm GANG --force`.",),
        fires=(('[gangline.gang.waiting]{namespace="gangline", pool="train", obstacle="impossible"}', "1x60"),),
    ),
    Alert(
        name="GangCrashLoop",
        expression='sum by (namespace, reason) (increase([gangline.gang.restarts]{kind="restart"}[15m])) > 5',
        lasts="0m",
        severity="warning",
        summary="Gangs restart again and again: {{ $labels.reason }}",
        means="Gangs were restarted more than five times in 15 minutes for the same reason.",
        look=("gangline history --kind gang_torn_down --since 15m", "gangline gang events"),
        do=(
            "`crashed` and `failed`: read the members' errors in the logs of their workers.",
            "`worker_lost`: workers die or freeze; see WorkersLost and WorkerFreezes.",
        ),
        fires=(('[gangline.gang.restarts]{namespace="gangline", reason="crashed", kind="restart"}', "0+1x60"),),
    ),
    Alert(
        name="WorkersLost",
        expression='sum by (namespace) (increase([gangline.gang.restarts]{reason="worker_lost"}[15m])) > 2',
        lasts="0m",
        severity="warning",
        summary="Workers with members of gangs are lost",
        means="More than two restarts or repairs in 15 minutes, because workers were lost.",
        look=("gangline history --kind worker_lost --since 30m", "gangline workers"),
        do=("Look for processes that the kernel killed (memory), machines that are gone, and networks that are cut.",),
        fires=(('[gangline.gang.restarts]{namespace="gangline", reason="worker_lost", kind="repair"}', "0+1x60"),),
    ),
    Alert(
        name="LeadershipFlaps",
        expression=(
            "max by (namespace) (changes(max by (namespace, shard) ([gangline.coordinator.term])[10m:15s])) > 3"
        ),
        lasts="0m",
        severity="critical",
        summary="The coordinators of {{ $labels.namespace }} elect a new leader again and again",
        means="More than three elections in ten minutes. Gangs continue, but none is granted in between.",
        look=(
            "gangline history --kind leader_elected --kind leader_yielded --since 30m",
            "nats server report jetstream",
        ),
        do=(
            "The reason of `leader_yielded` says why: a ledger that does not answer in time (slow disks, an overloaded "
            "server), or a coordinator whose process was frozen or overloaded.",
        ),
        fires=(('[gangline.coordinator.term]{namespace="gangline"}', "7+1x60"),),
    ),
    Alert(
        name="CommitsRefused",
        expression="sum by (namespace, outcome) (rate([gangline.gang.commits_refused][10m])) > 0.1",
        lasts="5m",
        severity="warning",
        summary="The ledger refuses or does not answer commits of gangs ({{ $labels.outcome }})",
        means="More than one batch in ten seconds is refused or not answered. Gangs form late.",
        look=("nats stream info KV_GANGLINE_LEDGER", "gangline gang ls"),
        do=(
            "`unknown`: storage is slow or has no leader; look at the servers.",
            "`refused`: workers change their registration all the time (epochs, resizes), or two coordinators lead.",
        ),
        fires=(('[gangline.gang.commits_refused]{namespace="gangline", what="form", outcome="unknown"}', "0+30x60"),),
    ),
    Alert(
        name="PoolFull",
        expression=(
            "sum by (namespace, pool) ([gangline.worker.slots.running] + [gangline.worker.slots.reserved]) "
            "/ sum by (namespace, pool) ([gangline.worker.slots.total] > 0) > 0.95"
        ),
        lasts="10m",
        severity="info",
        summary="Pool {{ $labels.pool }} has been full for ten minutes",
        means="More than 95 % of the slots are running or reserved. Callers wait.",
        look=("gangline workers POOL", "gangline leases POOL", "gangline queue ls"),
        do=("Add workers: the sum of `gangline.pool.slots_wanted` says how many slots the pool needs.",),
        fires=(
            ('[gangline.worker.slots.running]{namespace="gangline", pool="images", worker="w1"}', "4x60"),
            ('[gangline.worker.slots.reserved]{namespace="gangline", pool="images", worker="w1"}', "0x60"),
            ('[gangline.worker.slots.total]{namespace="gangline", pool="images", worker="w1"}', "4x60"),
        ),
    ),
    Alert(
        name="LeasesIdle",
        expression=(
            "sum by (namespace, pool) ([gangline.worker.slots.reserved]) > 0 "
            "and sum by (namespace, pool) ([gangline.worker.slots.running]) == 0"
        ),
        lasts="15m",
        severity="info",
        summary="Slots of pool {{ $labels.pool }} are leased, and nothing runs there",
        means="Leases have been held for 15 minutes without being used, or a gang does nothing.",
        look=("gangline leases POOL", "gangline gang ls"),
        do=("`leases` shows the owner and the age of each. Stop that program, or shorten its time to live.",),
        fires=(
            ('[gangline.worker.slots.reserved]{namespace="gangline", pool="images", worker="w1"}', "2x60"),
            ('[gangline.worker.slots.running]{namespace="gangline", pool="images", worker="w1"}', "0x60"),
        ),
    ),
    Alert(
        name="WorkerFreezes",
        expression='sum by (namespace, pool, worker) (increase([gangline.worker.epochs]{reason="frozen"}[15m])) > 2',
        lasts="0m",
        severity="warning",
        summary="Worker {{ $labels.pool }}.{{ $labels.worker }} freezes repeatedly",
        means="An event loop was blocked for longer than `freeze_after_s`, more than twice. Its leases end each time.",
        look=("gangline history --kind worker_epoch --since 30m", "gangline stats POOL.WORKER"),
        do=(
            "Move blocking code of async tasks to threads or processes.",
            "Give the machine more CPU, or the worker fewer slots.",
        ),
        fires=(
            ('[gangline.worker.epochs]{namespace="gangline", pool="images", worker="w1", reason="frozen"}', "0+1x60"),
        ),
    ),
    Alert(
        name="GangStraggler",
        expression=(
            f"{WAITS.format('pool, worker', '15m')} < 0.05 and on (namespace, pool) {WAITS.format('pool', '15m')} > 0.3"
        ),
        lasts="5m",
        severity="info",
        summary="Ranks of {{ $labels.pool }} wait for those on worker {{ $labels.worker }}",
        means="The ranks of a pool wait for each other for more than 30 % of their time, and those of one worker "
        "hardly ever: it is the slowest.",
        look=("gangline gang ls", "gangline gang show GANG", "gangline stats POOL.WORKER"),
        do=(
            "`gang show` names the [slowest rank](use-gangs.md#find-the-slowest-rank) of a gang. If the pool has "
            "several gangs, one that is well balanced can be named here too.",
            "If it is the same worker in each gang: look at its machine (heat, other processes, a slow disk or link), "
            "and drain the worker, `gangline drain POOL.WORKER`: its gangs form again elsewhere.",
            "If it is another rank each time, the work is divided unevenly.",
        ),
        fires=(
            *(
                (
                    f'[gangline.worker.gang_wait_time:sum]{{namespace="gangline", pool="train", worker="{worker}"}}',
                    values,
                )
                for worker, values in (("w1", "0+1x60"), ("w2", "0+50x60"), ("w3", "0+40x60"))
            ),
            *(
                (f'[gangline.worker.gang_members]{{namespace="gangline", pool="train", worker="w{n}"}}', "1x60")
                for n in (1, 2, 3)
            ),
        ),
    ),
    Alert(
        name="CallsFail",
        expression=(
            "sum by (namespace, endpoint) (rate([gangline.router.errors][5m])) "
            "/ sum by (namespace, endpoint) (rate([gangline.router.requests][5m])) > 0.05"
        ),
        lasts="5m",
        severity="warning",
        summary="{{ $value | humanizePercentage }} of the calls of {{ $labels.endpoint }} fail",
        means="More than one call in twenty ends in an error.",
        look=("gangline workers", "gangline route ls"),
        do=(
            "`gangline.router.errors` by `code` says which errors: the task's own, time-outs, or no free slots; see "
            "[errors](../reference/errors.md).",
        ),
        fires=(
            (
                '[gangline.router.errors]{namespace="gangline", endpoint="images", pool="images", code="timeout"}',
                "0+10x60",
            ),
            ('[gangline.router.requests]{namespace="gangline", endpoint="images", pool="images"}', "0+100x60"),
        ),
    ),
    Alert(
        name="QueueStalls",
        expression=(
            "max by (namespace, endpoint) ([gangline.queue.oldest]) > 300 "
            "and max by (namespace, endpoint) ([gangline.queue.running]) == 0 "
            f"{_NOT_PAUSED}"
        ),
        lasts="5m",
        severity="critical",
        summary="No task of {{ $labels.endpoint }} runs, and the oldest has waited for {{ $value | humanizeDuration }}",
        means="Submitted tasks wait for more than five minutes, and none runs. Not of paused queues.",
        look=("gangline queue ls", "gangline why JOB", "gangline workers"),
        do=(
            "Is the queue limited to nothing? `gangline route ls` shows it.",
            "Are there workers of its pools, and are they full of other work?",
        ),
        fires=(
            ('[gangline.queue.oldest]{namespace="gangline", endpoint="images"}', "0+60x60"),
            ('[gangline.queue.running]{namespace="gangline", endpoint="images"}', "0x60"),
        ),
    ),
    Alert(
        name="QueueLate",
        expression=f"max by (namespace, endpoint) ([gangline.queue.oldest]) > 3600 {_NOT_PAUSED}",
        lasts="15m",
        severity="warning",
        summary="The oldest task of {{ $labels.endpoint }} has waited for {{ $value | humanizeDuration }}",
        means="Submitted tasks start more than an hour late, though some may run. Not of paused queues.",
        look=("gangline queue ls", "gangline why JOB", "gangline jobs ls --state queued --endpoint ENDPOINT"),
        do=(
            "`why` says what the oldest waits for: slots, a limit, the order of its key, workers.",
            "Cancel what nobody needs any more: `gangline cancel --all --endpoint ENDPOINT --older-than 1h`.",
        ),
        fires=(('[gangline.queue.oldest]{namespace="gangline", endpoint="images"}', "3600+60x60"),),
    ),
    Alert(
        name="QueueLost",
        expression=GONE.format("max by (namespace, endpoint)", "gangline.queue.depth"),
        lasts="5m",
        severity="critical",
        summary="No dispatcher reports the queue {{ $labels.endpoint }} any more",
        means="A queue that had a dispatcher within the last day has none that is scraped.",
        look=("gangline queue ls", "gangline history --kind leader_yielded --since 30m"),
        do=("Start a dispatcher: `gangline dispatcher`. Run two, so that one may fail.",),
        fires=(('[gangline.queue.depth]{namespace="gangline", endpoint="images"}', "1x20 _x40"),),
    ),
    Alert(
        name="PoolLost",
        expression=GONE.format("sum by (namespace, pool)", "gangline.worker.slots.total"),
        lasts="5m",
        severity="critical",
        summary="Pool {{ $labels.pool }} has lost all its workers",
        means="A pool that had workers within the last day has none that is scraped.",
        look=("gangline workers POOL", "gangline history --kind worker_lost --since 30m"),
        do=("Start its workers, or, if the pool is gone for good, silence the alert for a day.",),
        fires=(('[gangline.worker.slots.total]{namespace="gangline", pool="images", worker="w1"}', "4x20 _x40"),),
    ),
    Alert(
        name="PoolTooSmall",
        expression=(
            "sum by (namespace, pool) ([gangline.pool.slots_wanted]) "
            "> 1.2 * sum by (namespace, pool) ([gangline.worker.slots.total]) "
            "or (sum by (namespace, pool) ([gangline.pool.slots_wanted]) > 0 "
            "unless sum by (namespace, pool) ([gangline.worker.slots.total]))"
        ),
        lasts="15m",
        severity="info",
        summary="Pool {{ $labels.pool }} needs {{ $value }} slots and has fewer",
        means="For 15 minutes a pool has needed more than 1.2 times the slots that it has.",
        look=("gangline workers POOL", "gangline leases POOL", "gangline queue ls"),
        do=("Add workers, or let an autoscaler follow the sum of `gangline.pool.slots_wanted`.",),
        fires=(
            ('[gangline.pool.slots_wanted]{namespace="gangline", pool="images", source="jobs"}', "10x60"),
            ('[gangline.worker.slots.total]{namespace="gangline", pool="images", worker="w1"}', "4x60"),
        ),
    ),
    Alert(
        name="LeaderLost",
        expression=GONE.format("max by (namespace, shard)", "gangline.coordinator.term"),
        lasts="2m",
        severity="critical",
        summary="No coordinator leads in {{ $labels.namespace }}",
        means="There was a leader within the last day, and no process that is scraped says that it leads.",
        look=("gangline history --kind leader_yielded --since 30m", "gangline gang ls"),
        do=("Start a coordinator: `gangline coordinator`. Run two, so that one may fail.",),
        fires=(('[gangline.coordinator.term]{namespace="gangline"}', "7x20 _x40"),),
    ),
    Alert(
        name="ScrapeFails",
        expression='up{job="gangline"} == 0',
        lasts="2m",
        severity="warning",
        summary="{{ $labels.instance }} does not answer Prometheus",
        means="A process of the job `gangline` is gone or frozen. The other alerts know nothing of it.",
        look=("gangline health --port PORT",),
        do=("Look at its log and at the machine. If it is gone for good, take it out of the scrape configuration.",),
        fires=(('up{job="gangline", instance="w1"}', "0x60"),),
    ),
    Alert(
        name="StreamNearLimit",
        expression=(
            'jetstream_stream_total_bytes{is_stream_leader="true", stream_name=~".*_TASKS|KV_.*|OBJ_.*"} '
            "/ (jetstream_stream_limit_bytes > 0) > 0.8"
        ),
        lasts="5m",
        severity="warning",
        summary="Stream {{ $labels.stream_name }} has {{ $value | humanizePercentage }} of the bytes that it may have",
        means="A stream of NATS is nearly full. When it is, it refuses tasks, results or leases. Not of streams "
        "that drop their oldest messages instead.",
        look=("gangline queue ls", "nats stream info STREAM"),
        do=(
            "Tasks pile up: see QueueLate. Results: keep them for a shorter time, `gangline route set ENDPOINT "
            "--result-ttl 10m`.",
            "Give it more: set `GANGLINE_MAX_BYTES` for those that create streams, or `nats stream edit STREAM "
            "--max-bytes`.",
        ),
        fires=(
            ('jetstream_stream_total_bytes{stream_name="GANGLINE_TASKS", is_stream_leader="true"}', "90x60"),
            ('jetstream_stream_limit_bytes{stream_name="GANGLINE_TASKS", is_stream_leader="true"}', "100x60"),
        ),
    ),
    Alert(
        name="ReplicasBehind",
        expression=(
            f"max {_STREAM} (jetstream_stream_last_seq) - min {_STREAM} (jetstream_stream_last_seq) > 1000 "
            f"or count {_STREAM} (jetstream_stream_last_seq) "
            f"< max_over_time(count {_STREAM} (jetstream_stream_last_seq)[6h:5m])"
        ),
        lasts="5m",
        severity="warning",
        summary="A replica of stream {{ $labels.stream_name }} is behind, or gone",
        means="A server has fewer messages of a stream than another one, or a replica of the last six hours is not "
        "reported any more. With one more failure the stream may stop.",
        look=("nats stream info STREAM", "nats server report jetstream"),
        do=(
            "Look at the server that is behind: is it up, are its disk and network slow? If it is gone for good, "
            "`nats server raft peer-remove` moves its replicas elsewhere.",
        ),
        fires=(
            ('jetstream_stream_last_seq{stream_name="GANGLINE_TASKS", server_name="n1"}', "0+900x60"),
            ('jetstream_stream_last_seq{stream_name="GANGLINE_TASKS", server_name="n2"}', "0x60"),
        ),
    ),
    Alert(
        name="NatsStorageFull",
        expression=("gnatsd_varz_jetstream_stats_storage / (gnatsd_varz_jetstream_config_max_storage > 0) > 0.85"),
        lasts="5m",
        severity="critical",
        summary="NATS server {{ $labels.server_id }} has used {{ $value | humanizePercentage }} of its storage",
        means="The storage of a server is nearly full. When it is, no task is accepted.",
        look=("nats server report jetstream", "gangline queue ls"),
        do=(
            "Remove what is not needed, or give the server more: `max_file_store` in its configuration, and a larger "
            "disk. [How much each stream takes](run-in-production.md).",
        ),
        fires=(
            ('gnatsd_varz_jetstream_stats_storage{server_id="n1"}', "90x60"),
            ('gnatsd_varz_jetstream_config_max_storage{server_id="n1"}', "100x60"),
        ),
    ),
    Alert(
        name="DeadLetters",
        expression="sum by (namespace, endpoint, reason) (increase([gangline.queue.dead][15m])) > 0",
        lasts="0m",
        severity="warning",
        summary="Tasks of {{ $labels.endpoint }} became dead letters: {{ $labels.reason }}",
        means="Submitted tasks became dead letters: they will not be retried.",
        look=("gangline dead ls --endpoint ENDPOINT", "gangline dead show JOB"),
        do=("Fix the cause, then `gangline dead replay JOB`, or drop them: `gangline dead rm JOB`.",),
        fires=(('[gangline.queue.dead]{namespace="gangline", endpoint="images", reason="failed"}', "0+1x60"),),
    ),
    Alert(
        name="CredentialsEnd",
        expression="[gangline.connection.credentials_end] - time() < 7 * 86400",
        lasts="5m",
        severity="warning",
        summary="The {{ $labels.file }} of {{ $labels.instance }} ends in {{ $value | humanizeDuration }}",
        means="Credentials or certificates with which a process connects end within a week. It cannot connect then.",
        look=("gangline roles --jwt FOLDER USER...", "openssl x509 -enddate -noout -in FILE"),
        do=(
            "`gangline roles --jwt FOLDER` renews credentials of which less than a third is left, and `--renew` all: "
            "[with JWTs](permissions.md#with-jwts). Reload the servers before you copy the new files to the processes.",
            "Replace certificates one process after the other, while the CA files have both authorities.",
        ),
        fires=(('[gangline.connection.credentials_end]{file="credentials", instance="w1"}', "1000x60"),),
    ),
    Alert(
        name="HistoryLost",
        expression='sum by (namespace, writer) (increase([gangline.history.records]{outcome="dropped"}[15m])) > 0',
        lasts="0m",
        severity="info",
        summary="Records of the history are lost by a {{ $labels.writer }}",
        means="The history could not be written for a long time, so records were dropped. Nothing else is affected.",
        look=("nats stream info GANGLINE_HISTORY",),
        do=(
            "Is there a coordinator or a dispatcher? Only they create the stream.",
            "May this user write there? Generate the roles again after an upgrade.",
        ),
        fires=(('[gangline.history.records]{namespace="gangline", writer="worker", outcome="dropped"}', "0+1x60"),),
    ),
)


# -- what is written --------------------------------------------------------------------------------------------------


def dashboard_json(dashboard: Dashboard) -> str:
    """For Grafana's import, or for provisioning."""
    panels: list[dict[str, Any]] = []
    source = {"type": "prometheus", "uid": "$datasource"}
    y = 0
    for question, row in dashboard.rows:
        panels.append({"type": "row", "title": question, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}, "panels": []})
        width = 24 // len(row)
        for column, panel in enumerate(row):
            fill = {"fillOpacity": 20, "stacking": {"mode": "normal"}} if panel.stacked else {"fillOpacity": 0}
            panels.append(
                {
                    "type": "timeseries",
                    "title": panel.title,
                    "datasource": source,
                    "gridPos": {"h": 8, "w": width, "x": column * width, "y": y + 1},
                    "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": fill}, "overrides": []},
                    "targets": [
                        {
                            "refId": "ABCDEF"[place],
                            "expr": resolved(expression),
                            "legendFormat": f"{{{{namespace}}}}: {legend}",
                        }
                        for place, (expression, legend) in enumerate(panel.expressions)
                    ],
                }
            )
        y += 9
    for number, panel_ in enumerate(panels, 1):
        panel_["id"] = number
    variables: list[dict[str, Any]] = [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
    for label, metric in dashboard.variables:
        variables.append(
            {
                "name": label,
                "type": "query",
                "datasource": source,
                "query": f"label_values({METRICS[metric].prometheus}, {label})",
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
                "refresh": 2,
                "sort": 1,
            }
        )
    whole = {
        "uid": f"gangline-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["gangline"],
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "templating": {"list": variables},
        "links": [{"type": "dashboards", "title": "Gangline", "tags": ["gangline"], "asDropdown": True}],
        "panels": panels,
    }
    return json.dumps(whole, indent=2) + "\n"


def rules_yaml() -> str:
    lines = [
        "# Alerts of Gangline for Prometheus. Written by docs/generate.py: change docs/dashboards.py.",
        "# What each means, and what to do: docs/how-to/alerts.md",
        "groups:",
        "  - name: gangline",
        "    rules:",
    ]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(resolved(alert.expression))}",
            f"        for: {alert.lasts}",
            f"        labels: {{severity: {alert.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          description: {json.dumps(alert.means)}",
            f"          runbook_url: docs/how-to/alerts.md#{alert.name.lower()}",
        ]
    return "\n".join([*lines, ""])


def alerts_page() -> str:
    lines = [
        "<!-- Written by docs/generate.py from docs/dashboards.py: change it there. -->",
        "",
        "# Dashboards and alerts",
        "",
        "For Prometheus and Grafana. Let Prometheus scrape each process: its [health port](probes.md) has `/metrics`,",
        "or set `OTEL_METRICS_EXPORTER=prometheus`. Then",
        "",
        "- import the dashboards of [`deploy/grafana`](../../deploy/grafana): overview, pool, gangs, submitted tasks;",
        "- load [`deploy/prometheus/rules.yaml`](../../deploy/prometheus/rules.yaml) as `rule_files`.",
        "",
        "The alerts on NATS itself (StreamNearLimit, ReplicasBehind, NatsStorageFull) need NATS's own exporter,",
        "[prometheus-nats-exporter](https://github.com/nats-io/prometheus-nats-exporter), at the monitoring port of",
        "each server; the others do not:",
        "",
        "```console",
        "$ prometheus-nats-exporter -varz -jsz=all http://127.0.0.1:8222",
        "```",
        "",
        "To see them filled, let Prometheus scrape the demo, which exports the metrics of all its processes on one",
        "port (with `pip install opentelemetry-exporter-prometheus`), and waits at some points until they were read:",
        "",
        "```console",
        "$ gangline demo --metrics-port 9464",
        "```",
        "",
        "```yaml",
        "scrape_configs:",
        "  - job_name: gangline",
        "    scrape_interval: 1s",
        "    static_configs: [{targets: [127.0.0.1:9464]}]",
        "```",
        "",
        "Both are made from the [catalogue of metrics](../reference/metrics.md). Tests evaluate every panel against",
        "scrapes of the demo, and have each alert fire. Change numbers to your needs. The annotation `runbook_url` of",
        "each alert names its section below; if you publish these pages, give it your address:",
        "",
        "```console",
        "$ sed -i 's|runbook_url: docs|runbook_url: https://docs.example.org|' deploy/prometheus/rules.yaml",
        "```",
        "",
        "| alert | severity | fires when |",
        "|---|---|---|",
        *(f"| [{alert.name}](#{alert.name.lower()}) | {alert.severity} | {alert.means} |" for alert in ALERTS),
    ]
    for alert in ALERTS:
        held = "" if alert.lasts == "0m" else f", for {alert.lasts}"
        lines += ["", f"## {alert.name}", "", alert.means, "", "```promql", resolved(alert.expression), "```"]
        lines += ["", f"Severity {alert.severity}{held}.", "", "Look:", "", "```console"]
        lines += [f"$ {command}" for command in alert.look]
        lines += ["```", "", "Do:", "", *(f"- {text}" for text in alert.do)]
    return "\n".join([*lines, ""])


def files() -> Iterable[tuple[Path, str]]:
    """Each file with its text."""
    for dashboard in DASHBOARDS:
        yield GRAFANA / f"{dashboard.name}.json", dashboard_json(dashboard)
    yield RULES, rules_yaml()
    yield PAGE, alerts_page()


def main() -> None:
    for path, text in files():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
