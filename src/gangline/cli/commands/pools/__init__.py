"""Commands about workers and leases."""
