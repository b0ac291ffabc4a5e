"""What a queue knows of its workers. Imports only: the router and the layers below."""
