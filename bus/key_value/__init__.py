"""A bucket: reads, writes, atomic batches, watches. Imports only: jetstream, port."""
