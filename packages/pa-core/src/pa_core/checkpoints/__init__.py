"""Checkpoint files: weights of models, and states that accelerate wrote."""
