"""The decisions about a queue's tasks. Pure. Imports only: policies."""
