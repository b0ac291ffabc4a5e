"""What happens in a run, drawn from its seed. Imports no other room."""
