"""One call with all its tries. Imports only: pools, transport, routing."""
