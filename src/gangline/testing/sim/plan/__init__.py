"""The plan of a run, drawn from its seed. Imports none of the other packages."""
