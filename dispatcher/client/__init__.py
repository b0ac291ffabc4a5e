"""The library's face. Imports only: router and what is below."""
