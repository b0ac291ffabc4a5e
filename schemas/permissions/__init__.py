"""Who may do what, as a server is told. Imports only: names."""
