"""What training costs, measured: see README.md."""
