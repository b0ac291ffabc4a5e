"""The one seam to NATS."""
