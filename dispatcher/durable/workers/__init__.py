"""What a queue sees of its workers. Imports only: core."""
