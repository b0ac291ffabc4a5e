"""Commands that call and submit tasks."""
