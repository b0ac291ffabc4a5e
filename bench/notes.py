"""Why a target is not met: what bounds the figure, and what was tried. The report tells it of those that are missed."""

from __future__ import annotations

from typing import Final

_CALLS: Final = (
    "Client, worker and server share two cores, so the sum of their CPU time bounds the rate. A call takes each side 5 "
    "to 7 us (18 at the raw client, 9 at the raw echo): 4 us of the client's own code and 5 of the worker's, and an "
    "exchange of messages costs either side some 65 us besides, most of it the kernel's. At 64 at once 20 to 30 calls "
    "share that, at 256 over a hundred. Tried and kept: halves of what is under way in one message each, so that both "
    "sides work at the same time (1.14 to 1.7 times raw at 64); no ticket, task, timer or span for a plain call; one "
    "settling for all answers of a message; coroutines stepped in place until their first wait. Tried and dropped: a "
    "future and its flight as one object, slots, no garbage collector."
)
NOTES: Final = {
    "call_c64_vs_raw": _CALLS,
    "call_c256_vs_raw": _CALLS,
    "call_c256_4w_vs_raw": (
        "Six processes on two cores. With four workers fewer frames share a message, so that a call costs the client "
        "6.5 us and not 4.6, and each worker more than one alone. Tried and kept: no halves for several workers, who "
        "work at the same time anyhow (1.3 to 1.8)."
    ),
    "call_mixed_c256_vs_raw": (
        "About 15 us in the worker where the raw echo takes 13: sleeping itself is 2.6, the step onto a task and back "
        "3.5, though tasks are used again, the rest is the call's. The ratio moves with the machine's load."
    ),
    "lease_call_c64_vs_raw": (
        "As for calls. A use costs the worker 0.8 us more than a call, now that all uses in a message move the expiry "
        "once."
    ),
    "reserve_dispatch_c64_vs_raw": (
        "Choosing and dispatching are two exchanges, and two frames either way, against one of raw: 17 us of CPU time "
        "in the client (23 before) and 17 to 20 in the worker (25 before). Of these 11.5 and 13 are their own code: "
        "a token, a lease, two memories against repeats, spread over some sixty places of which none has more than a "
        "twelfth. Most of these leases never reach storage."
    ),
    "gang8_form_vs_raw": (
        "The messages alone, sent by processes that do nothing else, take 3.2 raw trips: asking, holds, one atomic "
        "batch, the answer. The rest is Python in a row: the coordinator (740 us: placement, holds, records of eight "
        "seats, telling all), four workers of one process (380), the client (175). Tried and kept: placing once, calls "
        "in place of tasks, effects in the turn in which they were decided, seats made while others still answer, no "
        "second request by the owner: a quarter less. Tried and dropped: the first step of the commit in the same "
        "turn, `queued` told later, lazy orders, no garbage collector."
    ),
    "call_p99_c64_vs_raw": (
        "Half of our own peak is as many requests as raw can take at all, made, sent and answered on the same two "
        "cores as its half; the collector of garbage takes its milliseconds more often. In most runs it is below 2."
    ),
    "trace_on_cost": "Three spans of the OpenTelemetry SDK for a call, 15 to 20 us each, are more than the call.",
    "trace_off_cost": "Within the noise: single runs lay between 0.96 and 1.98.",
    "submit_vs_js_publish": (
        "The CPU time of a submission is 25 us, that of a raw publish 23; what differs from run to run is the disk."
    ),
    "idle_msgs_per_s": "One heartbeat a second and its acknowledgement; the registration every 20 s comes on top.",
    "durable_vs_best_peer": (
        "Ours is four processes at work where FastStream's is three. For each task they take 130 us of CPU time "
        "together (dispatcher 53, server 32, submitter 23, worker 22), FastStream's 165 (server 23, submitter 40, "
        "worker 102). Three times FastStream's rate on two cores would leave about 65 us for all four, of which server "
        "and submitter alone take 55. FastStream's stream keeps what is acknowledged; ours removes it, which is 4 us "
        "more of the server, and has an id against doubles, 2 us. FastStream has no retries with back-off, no dead "
        "letters, no priorities and no limits; for these the dispatcher decides (17 us), reads messages and headers "
        "(15), makes frames and keeps leases and tries (12), and writes; no step is more than a twentieth. Tried and "
        "kept: results looked up by sequence and not for 2 s after a takeover (295 to 185 us in all), one confirmation "
        "for all acknowledgements of a turn, little pulled at once, forms of headers remembered, jobs on the worker's "
        "short way (36 to 22 us), 256 slots. Tried and dropped: no garbage collector, a smaller window."
    ),
    "durable_start_p50_vs_best_peer": (
        "One process more on the way: a peer's worker takes the message itself, ours gets it from the dispatcher on a "
        "leased slot. Nothing waits for a timer or a turn: a pull request always stands, and the task leaves in the "
        "turn in which it came. What is left is one more process that has to wake up."
    ),
    "rayserve_call_ratio": (
        "Against its tuned run, whose router lives on the caller's loop (RAY_SERVE_THROUGHPUT_OPTIMIZED) and whose "
        "replica takes 512 requests at once. With its defaults it is far above the target. Each of the two runs in its "
        "turn, so a busy moment of the machine moves a round's ratio a lot: see worst and best."
    ),
    "rayserve_choose_ratio": "As for calls.",
}
