"""What a step is given and gives back: the default step, and checks of what users hand in."""
