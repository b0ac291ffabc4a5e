"""What simulated processes find around them, and everything that watches them. Imports only what is below `actors`."""
