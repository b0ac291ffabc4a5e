"""The same work with other systems for comparison: durable tasks on NATS and Redis, calls with Ray Serve.

Each peer is installed into an environment of its own (see environments). Code that runs there imports nothing of ours
except `board`, `near` and the child's protocol. `python -m bench.peers` measures, and lists what cannot be measured.
"""
