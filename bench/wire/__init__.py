"""Measures Gangline's speed against the raw wire: the same messages with nats-py's own request and reply, in the
same run, on the same machine. `gangline bench` runs it; the other folders of `bench/` contain what is not shipped.
"""
