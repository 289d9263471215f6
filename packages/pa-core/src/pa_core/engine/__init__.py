"""What makes a run: its session, its updates, what it trains, and how the processes make one update."""
