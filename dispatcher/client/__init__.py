"""The library's face. `sync` is written by docs/generate_sync.py. Imports only: router and what is below."""
