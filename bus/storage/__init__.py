"""What a connection has opened: buckets, streams and object stores. Imports only: key_value, jetstream, port."""
