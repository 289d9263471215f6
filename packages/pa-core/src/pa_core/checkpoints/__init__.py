"""Checkpoint files with the weights of models, and accelerate's training states."""
