"""Durable tasks: the dispatcher of submitted tasks."""
