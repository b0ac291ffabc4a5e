"""The JetStream API: streams, consumers, publishing. Imports only: streams, nats_client, port."""
