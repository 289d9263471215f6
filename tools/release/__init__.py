"""Checks a release, and makes its files: `nox -s release -- --check`, as RELEASING.md describes."""
