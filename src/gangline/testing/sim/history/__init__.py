"""What happened in a run, and what was wrong with it. Imports no other room."""
