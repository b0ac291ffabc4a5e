"""Messages from the stream. Imports only: calls, leases, routing, transport."""
