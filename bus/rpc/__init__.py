"""Requests, replies and the discovery of who answers. Imports only: port."""
