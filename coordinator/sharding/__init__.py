"""Which coordinator has which pools. Imports only: settings."""
