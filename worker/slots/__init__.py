"""Who holds which slot. Pure. Imports only: settings."""
