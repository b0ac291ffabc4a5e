"""How a service on the bus starts and ends. Imports only: port."""
