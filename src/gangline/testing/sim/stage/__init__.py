"""What simulated processes find around them, and all that watches them. Imports only what stands below `actors`."""
