"""One queue at work. Imports only: core, persistence, workers."""
