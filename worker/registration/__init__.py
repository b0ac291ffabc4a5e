"""How a worker is known to others. Imports only: slots, ledger, pool."""
