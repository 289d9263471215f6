"""Asks training loops what they really do, by running them: `python -m pa_conform ADAPTER`."""
