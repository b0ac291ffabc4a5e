"""Checks of durable tasks. Imports only: calls, tasks, plan, history."""
