"""A server in memory, for tests and the simulator. Imports only: streams, port."""
