"""What is checked of calls and leases."""
