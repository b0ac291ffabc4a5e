"""Members of gangs on this worker. Imports only: wire, execution, ledger, slots."""
