"""How fast Gangline is, against the raw wire: the same messages by nats-py's own request and reply, in the same run, on
the same machine. `gangline bench` runs it; the other folders of `bench/` add what is not shipped.
"""
