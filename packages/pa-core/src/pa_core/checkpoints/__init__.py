"""Checkpoint files with the weights of models, and training states of accelerate."""
