"""Benchmarks and fault tests on real processes. Not part of the package; run from the project's folder."""
