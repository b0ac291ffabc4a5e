"""One queue at work. Imports only: what is below."""
