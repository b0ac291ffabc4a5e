"""The simulator: the whole system in one process, on a virtual clock and a bus that fails by seed.

`run(seed)` draws a plan (`plan`), plays it (`play`) with the production code of workers and clients, and checks the
laws of the design after every event (in `calls`, `gangs` and `durable`). A seed replays exactly.

::

    python -m gangline.testing.sim --seeds 1000
    python -m gangline.testing.sim --from 417 --seeds 1 --trace
    python -m gangline.testing.sim --gangs --seeds 1000
    python -m gangline.testing.sim --durable --seeds 1000

With `gangs`, a plan has coordinators, owners, members that fail and standing sets beside the plain traffic
(`plan.gang_draw`), and every revision of the ledger is replayed (`gangs.ledger`). With `durable`, it has dispatchers,
durable tasks and routes (`plan.durable_draw`), which `durable.laws` follows from start to rest.
"""
