"""One call with all its attempts. Imports only: pools, transport, routing."""
