"""What simulated workers run. Imports only: plan."""
