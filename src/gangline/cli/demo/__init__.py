"""`gangline demo`: real work through leased slots on a real nats-server, with faults, every claim checked."""
