"""Checks of a release, and the files of one: `nox -s release -- --check`, as RELEASING.md describes."""
