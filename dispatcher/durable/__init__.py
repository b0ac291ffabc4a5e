"""Durable tasks: what the dispatcher does with what was submitted."""
