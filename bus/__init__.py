"""All communication with NATS."""
