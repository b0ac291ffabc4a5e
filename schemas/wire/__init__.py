"""Bytes on the wire: frames, headers, codecs. Imports only errors."""
