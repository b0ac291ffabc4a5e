"""The tasks of simulated workers. Imports only: plan."""
