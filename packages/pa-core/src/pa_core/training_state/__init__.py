"""Training states: everything a run consists of, captured between two updates and restored to resume from there."""
