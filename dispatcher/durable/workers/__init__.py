"""What a queue sees of its workers. Imports only: the router and what is below."""
