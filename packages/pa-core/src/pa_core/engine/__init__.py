"""The engine of a run: its session, its updates, its trained parts, and the exchange of gradients."""
