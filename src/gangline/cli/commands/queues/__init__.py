"""Commands about durable queues and dead letters."""
