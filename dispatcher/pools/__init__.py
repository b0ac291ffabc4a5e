"""A pool as it is seen live. Imports only: transport, routing."""
