"""What a running task sees. Imports only: settings."""
