"""The same work by other systems, side by side with ours: durable tasks on NATS and Redis, calls by Ray Serve.

Each peer is installed into an environment of its own (see environments); what runs there imports nothing of ours but
`board`, `near` and the child's protocol. `python -m bench.peers` measures; what cannot be had is said, not guessed.
"""
