"""The simulator: the whole system in one process, on a virtual clock and a bus that fails by seed.

`run(seed)` draws a plan (`plan`), plays it (`world`) with the same worker and client code that serves users, and checks
the laws of the design after every event (`checker` and the modules beside it). A seed replays exactly.

::

    python -m gangline.testing.sim --seeds 1000
    python -m gangline.testing.sim --from 417 --seeds 1 --trace
    python -m gangline.testing.sim --gangs --seeds 1000
    python -m gangline.testing.sim --durable --seeds 1000

With `gangs`, a plan has coordinators, owners, members that fail and standing sets beside the plain traffic
(`gang_draw`), and every revision of the ledger is replayed (`gang_ledger`). With `durable`, it has dispatchers, durable
tasks and routes (`durable_draw`), which `durable_laws` and `durable_limits` follow from start to rest.
"""
