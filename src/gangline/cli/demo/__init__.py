"""`gangline demo`: a real workload on leased slots and a real nats-server, with faults; every claim is checked."""
