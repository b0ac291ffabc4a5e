"""One dispatcher a queue. Imports only: policies, workers."""
