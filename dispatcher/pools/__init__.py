"""The live state of a pool. Imports only: transport, routing."""
