"""What happened in a run, and what was wrong with it. Imports none of the other packages."""
