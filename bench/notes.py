"""Why a target is not met: what limits the figure, and what was tried. The report shows these notes for missed
targets."""

from __future__ import annotations

from typing import Final

_CALLS: Final = (
    "Client, worker and server share two cores, so the sum of their CPU times limits the rate. A call costs "
    "each side 5 to 7 us (raw: 18 at the client, 9 at the echo): 4 us of the client's own code and 5 us of the "
    "worker's. In addition, an exchange of messages costs each side about 65 us, a tenth of it in the kernel. With 64 "
    "calls in flight 20 to 30 of them share an exchange, with 256 over a hundred. Tried and kept: send half of "
    "the frames in flight per message, so that both sides work at the same time (1.14 to 1.7 times raw at 64); "
    "no ticket, task, timer or span for a plain call; settle all answers of a message together; run coroutines "
    "directly until their first wait. Tried and dropped: future and request in one object, slots, no garbage "
    "collector."
)
NOTES: Final = {
    "call_c64_vs_raw": _CALLS,
    "call_c256_vs_raw": _CALLS,
    "call_c256_4w_vs_raw": (
        "Six processes on two cores. With four workers fewer frames share a message, so a call costs the client "
        "6.5 us instead of 4.6, and costs each worker more than with one worker. Tried and kept: no half "
        "messages with several workers, which work at the same time anyway (1.3 to 1.8)."
    ),
    "call_mixed_c256_vs_raw": (
        "About 15 us in the worker; the raw echo takes 13. Of these, the sleep itself is 2.6, switching to a "
        "task and back 3.5, although tasks are reused, and the rest is the call. Tasks that wake up in one tick of "
        "uvloop's timers, a millisecond, share an answer: some 60 of 256. The ratio varies with the machine's load. "
        "Tried and kept: collect garbage after 2,000 new objects instead of 700 (2.6 times per 1,000 calls instead of "
        "12, 3 to 5 % of the worker's CPU time); no coroutine around the generator of a reused task (2 % of a switch)."
    ),
    "lease_call_c64_vs_raw": (
        "As for calls. A use of a lease costs the worker 0.8 us more than a call, now that all uses in a "
        "message extend the expiry once."
    ),
    "reserve_dispatch_c64_vs_raw": (
        "Choosing and dispatching are two exchanges with two frames in each direction; raw has one exchange. "
        "They cost 17 us of CPU time in the client (23 before) and 17 to 20 in the worker (25 before). Of these "
        "11.5 and 13 are our own code: a token, a lease and two caches against repeats, spread over about sixty "
        "places, none of which takes more than a twelfth. Most of these leases never reach storage."
    ),
    "gang8_form_vs_raw": (
        "The messages alone, sent by processes that do nothing else, take 3.2 raw round trips: request, holds, one "
        "atomic batch, answer. The rest is sequential Python code: the coordinator (740 us: placement, holds, "
        "records of eight seats, notifications), four workers in one process (380), the client (175), measured "
        "before the last savings. A target of 8 leaves about half of that. docs/explanation/gangs.md lists the "
        "phases with their times, and why none can be left out or start earlier. The figure depends on how the "
        "machine schedules: medians were between 8 and 19, the highest in a run in which a raw round trip took 0.21 "
        "ms instead of 0.3. Code does not explain that: a state of three days earlier executed as many bytecodes, "
        "and took from as much CPU time to a fifth less in alternating rounds. Tried and kept: place once, calls "
        "instead of tasks, run effects in the turn in which they were decided, build seats while other workers still"
        " answer, no second request by the owner: a quarter less; look each worker up once in a placement (77 to 63 "
        "us), look for room only if a gang waits, take tokens from the answers to `form` only if they are not known,"
        " describe a gang once: the coordinator executes a tenth less. Tried and dropped: the first step of the "
        "commit in the same turn, sending `queued` after the holds and `formed` after the answer, in the same write "
        "or in one of their own (no difference in 8 alternating runs), orders of nodes that are updated when they "
        "are read (6 us of the placement), lazy orders, no garbage collector."
    ),
    "call_p99_c64_vs_raw": (
        "Half of our own peak is as many requests as raw can handle at most, on the same two cores, and the garbage "
        "collector runs more often for some milliseconds. Rounds differ by a factor of a hundred; another run's "
        "median was 0.75."
    ),
    "trace_on_cost": (
        "A call has two spans, the caller's and the worker's. One at a time, each adds 100 us of CPU time to a side "
        "that spends 110 on a call without it, on a loaded machine: a span of the OpenTelemetry SDK in a loop of its "
        "own takes 30 there, and more between other code, which it pushes out of the caches."
    ),
    "trace_1pct_c64": (
        "Client, worker and a bus in memory, in one process that is slowed by others, take 14.5 us per call. That no "
        "trace is sampled then adds 5.6 us, and 4 now: the client's decision 1.3, the worker's 1.0, the current "
        "span of the task 0.9, the rest for a traceparent of "
        "55 characters. The same code takes half as long in a loop of its own. One sampled call in a hundred adds "
        "2 to 3 us: it costs 150 to 250 us, and 110 if all are, since its code is out of the caches. Tried and "
        "kept: decide from the sampler's rate without asking it, no span object for what is not sampled, 64 new "
        "traces from one draw, one object for an unsampled request. Dropped on paper: a shorter text for what is "
        "not sampled, since logs and other services need the trace's id; one context for all unsampled tasks that "
        "looks up the current one, since threads that are given a context would lose its trace."
    ),
    "trace_100pct_c64": (
        "A call has two spans, the caller's and the worker's. One span of the OpenTelemetry SDK costs 9 us without "
        "attributes, and 12 with our three (20 to 30 while others use the machine); a whole call costs the client "
        "5 to 7 us, and the worker as much. A fifth of what is added is the garbage collector's, since spans are "
        "kept until their export. Our part on top of the SDK's is 10 us at the client, and 11 at the worker, on a "
        "loaded machine. Dropped: spans made by ReadableSpan at the end (3 us instead of 20), which the SDK asks users "
        "not to do, and which processors would not see start."
    ),
    "weighted_route_c64": (
        "A tenth of the calls go to a second worker. So each turn sends two messages instead of one, and four "
        "processes share the two cores instead of three. A message costs each side about 65 us, which is 2 us per "
        "call here. The route itself costs the client another 2 us per call. Tried and kept: the fast path draws "
        "the pool from sums that were made when the route was set, and each flight counts itself in place (4.6 to "
        "2.4 us). Messages to both workers share a write: 20 calls share a write, as without a route, and 14 a message "
        "instead of 21. Dropped on paper: one draw for all requests of a turn, since the small pool would get them in "
        "bursts of a whole turn; holding few frames back while others are on their way, since a call would wait for "
        "the tasks of others."
    ),
    "model_c64": (
        "The model is dumped, packed as a map of three fields and a list, unpacked and validated by the worker, and "
        "dumped, checked and packed again for the answer: 6 us of the two sides' 17, of which pydantic takes 3. "
        "Tried and kept: a result that is exactly of the annotated class is not validated again (3.4 to 2.5 us), and "
        "is packed in one step, without a copy (3.8 to 2.0); a single argument is converted without a list of "
        "problems (2.2 to 1.2); the client serializes without model_dump (2.5 to 2.0)."
    ),
    "gateway_c1": (
        "A plain request and its answer pass the server four times, raw request-reply twice: to the gateway, to the "
        "worker, and back. Eight hops instead of four limit the figure to 0.5. Tried and kept: no task, no future "
        "and no call of its own for a request (264 to 181 us of the gateway's CPU time)."
    ),
    "gateway_c64": (
        "The gateway unpacks and packs each request and each answer once more than raw, 30 us on two cores that also "
        "run requester, worker and server. Tried and kept: as for one at a time (37 to 24 us); the subject of an "
        "answer is checked as the sibling of an earlier one, and no member of an enum is read on the way (a tenth "
        "less)."
    ),
    "sync_client_c1": (
        "Each call crosses from the caller's thread to the event loop's and back, and each crossing wakes a thread "
        "that sleeps in the kernel. Raw request-reply runs in the event loop itself. Tried and kept: uvloop in the "
        "client's thread, and a lock that wakes the caller instead of two concurrent futures (an empty coroutine: 130 "
        "to 90 to 57 us on a loaded machine)."
    ),
    "call_serial_vs_raw": (
        "A call and a raw request make the same two exchanges of messages. The rest is the client's and the worker's "
        "own code, 10 to 12 us, between wake-ups that take several times as long and vary: another run's "
        "median was 0.98."
    ),
    "metrics_and_1pct_c64": "Metrics alone keep within their target; the rest is that of trace_1pct_c64.",
    "key_c64": (
        "A key costs client and worker 2.4 us together, of the 14 of a call without messages: a copy of the options, a "
        "look-up of its home, and a map in the frame. Another run's median was 0.91: rounds vary more. Tried and kept: "
        "copy all options at once, and send the key alone (4.3 to 2.4 us); find a new key's home on the fast path (two "
        "fifths of the instructions of the first call with a key)."
    ),
    "imported_c64": (
        "Each request and each answer crosses an import, where the server maps the subject and looks the subscribers "
        "up in the other account as well. With 64 at once the server is one of four processes that share two cores."
    ),
    "trace_off_cost": ("Within the noise: single runs were between 0.96 and 1.98."),
    "submit_vs_js_publish": (
        "A submission costs 25 us of CPU time, a raw publish 23; the disk makes the difference between runs."
    ),
    "idle_msgs_per_s": ("One heartbeat a second and its acknowledgement, plus the registration every 20 s."),
    "durable_vs_best_peer": (
        "Gangline uses four processes where FastStream uses three. Together they take four fifths of FastStream's CPU "
        "time per task: 130 us (dispatcher 53, server 32, submitter 23, worker 22) of 165 (server 23, submitter 40, "
        "worker 102) in a quiet hour, and half as much again for all Python code on a loaded machine, see the table. "
        "Twice FastStream's rate on two cores would leave about 80 us for all four, and server and submitter alone "
        "take 55. FastStream's stream keeps acknowledged messages; ours removes them, which costs the server 4 us "
        "more, and has message ids against duplicates, 2 us. FastStream has no retries with backoff, no dead letters, "
        "no priorities and no limits; for these the dispatcher makes decisions (17 us), reads messages and headers "
        "(15), builds frames and keeps leases and attempts (12), and writes; no step takes more than a twentieth. "
        "These parts are from before its core got all events of a turn together, and before tasks whose result nobody "
        "keeps were acknowledged at once: a fifth off the dispatcher (107 to 87 us on a loaded machine). A machine so "
        "busy that a proof of ownership takes 0.75 s costs more: then the dispatcher looks up the results of all "
        "tasks that wait in the stream, and it and the server take up to twice as long for each. Tried and kept: look "
        "results up by sequence, and not for 2 s after a takeover (295 to 185 us in total), one confirmation for all "
        "acknowledgements of a turn, small pulls, a cache of parsed headers, a fast path for jobs in the worker (36 "
        "to 22 us), 256 slots, frames without an answer in one message (40 % fewer messages between dispatcher and "
        "worker, 3 to 5 % of CPU time), all acknowledgements of a turn as one command. Tried and dropped: all frames "
        "of a turn in one message (no difference), no garbage collector, a smaller window, atomic and fast-ingest "
        "batches of submissions, workers that pull for themselves (see docs/adr/0014-durable-hops.md)."
    ),
    "durable_many_vs_best_peer": (
        "submit_many makes a submission cost the submitter 22 us instead of 38 on a loaded machine, which is a tenth "
        "of what all processes spend on a task, and less than rounds differ. The rest is as for single submissions."
    ),
    "submit_result_c64": (
        "A result is one more write to storage (server, dispatcher) and one more message to the submitter. Tried and "
        "kept: no look-up of a result for the first message of a job (dispatcher 250 to 165 us, server 143 to 98), one "
        "request of the submitter for all results of a turn, results told when they are stored."
    ),
    "submit_result_p50_ms": (
        "One at a time, a task and its result make seven messages in a row, two of which wait for storage: submission, "
        "its acknowledgement, delivery, the worker and back, the result's write and its acknowledgement."
    ),
    "gang8_form_vs_ray_pg": (
        "Ray reserves all bundles of a placement group on one node with one decision of its control store and one "
        "request to the node, in C++; a gang of 8 is held at four workers, committed in one atomic batch, and told to "
        "its workers, in Python. The messages of a gang take 3.2 raw round trips without any code, which is more than "
        "a tenth of Ray's time, so the target cannot be met over NATS. While the machine's load was above 9, a gang "
        "took 11.1 ms. With little else on the machine, it takes 2.3 to 4.4 ms. Where a group needs all CPUs of a "
        "node, Ray takes up to a second to see that those of the last group are free, which gangs do not."
    ),
    "durable_start_p50_vs_best_peer": (
        "A task passes through one more process: a peer's worker receives the message itself, ours gets it from "
        "the dispatcher on a leased slot. Nothing waits for a timer or a turn: a pull request is always open, "
        "and the task is sent in the turn in which it arrived. What remains is one more process that has to "
        "wake up."
    ),
    "rayserve_call_ratio": (
        "Against its tuned run, whose router runs on the caller's loop (RAY_SERVE_THROUGHPUT_OPTIMIZED) and "
        "whose replica accepts 512 requests at once. Against its defaults the ratio is far above the target. "
        "The two systems run one after the other, so a busy moment of the machine changes a round's ratio a "
        "lot: see worst and best."
    ),
    "rayserve_choose_ratio": "As for calls.",
}
