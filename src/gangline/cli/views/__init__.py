"""Tables and texts about workers, gangs, tasks and routes."""
