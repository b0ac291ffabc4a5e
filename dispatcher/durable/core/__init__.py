"""What becomes of a queue's tasks. Pure. Imports only: policies."""
