"""One dispatcher a queue. Imports only: core, context."""
