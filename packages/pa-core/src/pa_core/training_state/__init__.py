"""Training states: the complete state of a run, captured between two updates, and restored to resume it."""
