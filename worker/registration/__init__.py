"""How other processes find a worker. Imports only: slots, ledger, pool."""
