"""A server in memory, for tests and the simulator. Imports only: storage, key_value, jetstream, nats_client, port."""
