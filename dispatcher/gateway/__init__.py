"""Calls for producers that only publish. Imports only: router and layers below."""
