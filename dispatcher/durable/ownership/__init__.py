"""One owner per queue. Imports only: policies, workers."""
