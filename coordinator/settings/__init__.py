"""What may be tuned. Imports no other room."""
