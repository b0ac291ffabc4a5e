"""What is checked of calls and leases. Imports only: history."""
