"""The demo's three parts."""
