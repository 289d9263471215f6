"""The default step, and checks of users' arguments and outputs."""
